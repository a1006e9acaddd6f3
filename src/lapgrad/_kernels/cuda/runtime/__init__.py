"""Compiling, launching and feeding CUDA kernels; NVIDIA's libraries on torch's stream."""
