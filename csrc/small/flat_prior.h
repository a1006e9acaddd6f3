// A prior of the first state that is flat in d directions, for the Kalman filter. Included only by isa_kernels.cpp.
//
// With h[0] = N(m, P) + D delta and a flat prior of delta, all distributions given delta are proper, and linear in delta: the mean has
// q = 1 + d columns [m D], the innovations v and u = S^-1 v too (observations and offsets count in the first), and S does not depend
// on delta. Summed over the steps (de Jong 1991),
//
//     G = sum v' u = [[g00, g'], [g, H]],
//     s = (g00 - g' H^-1 g + log det H + sum log det S) / 2 + count/2 log(2 pi),
//     ds/dG = W / 2, W = z z' + [[0, 0], [0, H^-1]], z = [1, -H^-1 g].
//
// Without flat directions G is the sum of squares, and W is 1.
template <class T, bool Wide>
class FlatPrior {
    using S = Numbers<T, Wide>;
    using V = typename S::V;

  public:
    V* W;

    // Takes 3 q^2 numbers of workspace.
    void place(V* memory, index_t observations, index_t columns) {
        p = observations;
        q = columns;
        W = memory;
        G = W + q * q;
        lost = G + q * q;
    }

    void reset() {
        clear(G, q * q);
        clear(lost, q * q);
    }

    // Lower triangle of G += v' u. Kahan summation, because thousands of steps are added in single precision.
    void add(const V* v, const V* u) {
        for (index_t i = 0; i < q; ++i)
            for (index_t j = 0; j <= i; ++j) {
                V term = -lost[i * q + j];
                for (index_t k = 0; k < p; ++k) term += v[k * q + i] * u[k * q + j];
                const V sum = G[i * q + j] + term;
                lost[i * q + j] = (sum - G[i * q + j]) - term;
                G[i * q + j] = sum;
            }
    }

    // Returns g00 - g' H^-1 g, and computes W. Calls note(pivot, direction, fine) for each pivot of H; one that is not `fine`,
    // positive and finite, is replaced by 1.
    template <class Note>
    V integrate_out(Note note) {
        const V one = S::fill(T(1)), largest = S::fill(std::numeric_limits<T>::max());
        const V smallest = S::fill(T(8 * q) * std::numeric_limits<T>::epsilon());
        // The factor L of H replaces its lower triangle. Row 0 of `inverse` becomes (L^-1 g)', the rest L^-1.
        V* const inverse = lost;
        clear(inverse, q * q);
        V quadratic = G[0];
        for (index_t j = 1; j < q; ++j) {
            V pivot = G[j * q + j];
            // A pivot that is rounding error of what it was computed from belongs to a direction that is not determined.
            for (index_t k = 1; k < j; ++k) pivot -= G[j * q + k] * G[j * q + k];
            const auto fine = (pivot > smallest * G[j * q + j]) & (pivot <= largest);
            note(pivot, j - 1, fine);
            const V root = S::root(fine ? pivot : one), over = one / root;
            G[j * q + j] = root;
            for (index_t i = j + 1; i < q; ++i) {
                V sum = G[i * q + j];
                for (index_t k = 1; k < j; ++k) sum -= G[i * q + k] * G[j * q + k];
                G[i * q + j] = sum * over;
            }
            V sum = G[j * q];
            for (index_t k = 1; k < j; ++k) sum -= G[j * q + k] * inverse[k];
            inverse[j] = sum * over;
            quadratic -= inverse[j] * inverse[j];
            for (index_t i = 1; i <= j; ++i) {
                V entry = i == j ? one : V{};
                for (index_t k = i; k < j; ++k) entry -= G[j * q + k] * inverse[k * q + i];
                inverse[j * q + i] = entry * over;
            }
        }
        W[0] = one;
        for (index_t i = 1; i < q; ++i) {
            V z{};
            for (index_t k = i; k < q; ++k) z -= inverse[k * q + i] * inverse[k];
            W[i * q] = W[i] = z;
        }
        for (index_t i = 1; i < q; ++i)
            for (index_t j = 1; j <= i; ++j) {
                V sum = W[i] * W[j];
                for (index_t k = i; k < q; ++k) sum += inverse[k * q + i] * inverse[k * q + j];
                W[i * q + j] = W[j * q + i] = sum;
            }
        return quadratic;
    }

  private:
    index_t p, q;
    V *G, *lost;
};
