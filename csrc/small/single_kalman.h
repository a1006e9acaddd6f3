// The Kalman filter and its adjoint for one series with one observation at a time, in double precision. Included only by isa_kernels.cpp.
//
// Rows of matrices are padded to whole vectors, and products read only the nonzero entries of A and B. The mathematics is that of
// lane_kalman.h and flat_prior.h with p = 1, with two differences that save time. The gain k and the innovations of each step are kept, so
// that the adjoint does not run the filter again. Flat directions M of the prior are integrated out as soon as the data determine them
// well, at the start of step t0, instead of being carried to the end. With G = [[g00, g'], [g, H]] of the steps before t0 and z = -H^-1 g,
//
//     m := m + M z,  P := P + M H^-1 M',  s = (g00 - g' H^-1 g + log det H) / 2 + the terms of the later steps
//
// and backwards, with a = H^-1 M' gm and E = M' gP M,
//
//     gM = gm z' + 2 gP M H^-1,  dG00 = 1/2,  dg = (z - a) / 2,  dH = (z z' + H^-1 - a z' - z a') / 2 - H^-1 E H^-1.
template <int Bytes>
class SingleSeries {
    using S = Simd<double, Bytes>;
    using Vec = typename S::Vec;
    static constexpr index_t W = S::W;

  public:
    SingleSeries(const KalmanSizes& sizes, const KalmanOperands<const double>& model, double* memory, index_t series)
        : n(sizes.states), ld((n + W - 1) / W * W), flat_(sizes.flat), q(1 + sizes.flat), model_(model), series_(series) {
        const auto take = [&memory](index_t count) {
            double* const start = memory;
            memory += (count + 7) / 8 * 8;
            return start;
        };
        for (double** matrix : {&P, &Pf, &T1, &T2, &gP, &gQ, &gA, &Q}) *matrix = take_zeros(take, ld * ld);
        for (double** columns : {&m, &mf, &gm, &gmf, &M, &MP}) *columns = take_zeros(take, q * ld);
        for (double** vector : {&d, &h, &c, &gc}) *vector = take_zeros(take, ld);
        for (double** square : {&G, &gG, &inverse, &E}) *square = take_zeros(take, q * q);
        for (double** vector : {&z, &a, &v, &gu}) *vector = take_zeros(take, q);
        for (Entries* entries : {&A, &At}) {
            entries->value = take(n * n);
            entries->column = reinterpret_cast<std::int32_t*>(take(n * n));
            entries->first = reinterpret_cast<std::int32_t*>(take(n + 1));
        }
        b = take(n);
        seen = reinterpret_cast<std::int32_t*>(take(n));
        kept = memory;
        for (index_t i = 0; i < n; ++i) {
            for (index_t j = 0; j < q; ++j) m[j * ld + i] = model.m.at(series, 0)[i * q + j];
            for (index_t j = 0; j <= i; ++j) P[i * ld + j] = P[j * ld + i] = model.P.at(series, 0)[i * n + j];
        }
        steps_ = sizes.times;
        while (steps_ > 0 && is_missing(steps_ - 1)) --steps_;
    }

    // Runs the filter. s := the negative log likelihood, status := the first failure; both may be null. With `keeps` the results that
    // the adjoint reads are kept, with `keeps_moments` also the filtered moments. Returns whether all went well.
    bool run_forward(double* s, KalmanStatus* status, bool keeps, bool keeps_moments) {
        double mantissa = 1.0, quadratic = 0.0;
        index_t exponent = 0, observed = 0;
        const auto multiply_pivot = [&](double pivot) {
            mantissa *= pivot;
            if (mantissa > 1e-3 && mantissa < 1e3) return;
            int e = 0;
            mantissa = __builtin_frexp(mantissa, &e);
            exponent += e;
        };
        const auto fail = [&](index_t step, std::int32_t code) {
            if (status) status[series_] = {step, code};
            if (s) s[series_] = __builtin_nan("");
            return false;
        };
        if (status) status[series_] = {0, 0};
        keeps_moments_ = keeps_moments;
        collapse_ = flat_ ? steps_ + 1 : 0;
        double* record = kept;
        for (index_t t = 0; t < steps_; ++t) {
            load_model(t, t == 0);
            if (q > 1 && observed >= flat_ && (observed - flat_) % 4 == 0 && factor_information(well_determined) < 0) {
                for (index_t j = 1; j < q; ++j) multiply_pivot(G[j * q + j] * G[j * q + j]);
                quadratic = collapse(t);
            }
            record[0] = 0.0;
            if (is_missing(t)) {
                std::swap(m, mf);
                std::swap(P, Pf);
            } else {
                const double R = model_.R.at(series_, t)[0], innovation_variance = observe(t, R);
                if (!(innovation_variance > 0.0 && innovation_variance <= std::numeric_limits<double>::max()))
                    return fail(t, innovation_variance - innovation_variance == 0.0 ? 1 : -1);
                const double over = 1.0 / innovation_variance;
                if (!(v[0] * (v[0] * over) <= std::numeric_limits<double>::max())) return fail(t, -2);
                update(R, over, record);
                if (q > 1)
                    for (index_t i = 0; i < q; ++i)
                        for (index_t j = 0; j <= i; ++j) G[i * q + j] += v[i] * v[j] * over;
                else
                    quadratic += v[0] * v[0] * over;
                multiply_pivot(innovation_variance);
                ++observed;
            }
            if (keeps) record = finish_record(record);
            if (t + 1 < steps_) predict(t);
        }
        if (q > 1) {
            const index_t open = factor_information(8.0 * static_cast<double>(q) * std::numeric_limits<double>::epsilon());
            if (open >= 0) return fail(open, 3);
            for (index_t j = 1; j < q; ++j) multiply_pivot(G[j * q + j] * G[j * q + j]);
            quadratic = collapse(steps_);
        }
        const double log_det = __builtin_log(mantissa) + static_cast<double>(exponent) * 0.6931471805599453094;
        if (s) s[series_] = 0.5 * (quadratic + log_det + static_cast<double>(observed) * 1.8378770664093454836);
        last_record_ = record;
        return true;
    }

    // Adds gradients, times the cotangent gs of s, to their targets; after run_forward with `keeps`. B must not be among them.
    void run_backward(const KalmanOperands<double>& gradient, double gs) {
        double gR = 0.0;
        clear(gm, ld * (1 + flat_));
        clear(gP, ld * ld);
        double* record = last_record_;
        if (flat_ && collapse_ == steps_) expand();
        for (index_t t = steps_ - 1; t >= 0; --t) {
            record -= get_record_size();
            load_model(t, false);
            if (t + 1 < steps_) {
                reverse_prediction(t, record, gradient, gs);
            } else {
                clear(gmf, ld * q);
                clear(Pf, ld * ld);
            }
            if (record[0] != 0.0) {
                const double g = reverse_update(t, record, gradient, gs);
                if (gradient.R.data) add_number(gradient.R, t, gs, g, gR);
            } else {
                std::swap(gm, gmf);
                std::swap(gP, Pf);
            }
            if (t % 8 == 0) mirror_padded(gP);
            if (flat_ && collapse_ == t) expand();
        }
        if (steps_ == 0) return;
        if (gradient.R.data && !gradient.R.time_stride) *gradient.R.at(series_, 0) += gs * gR;
        if (gradient.A.data && !gradient.A.time_stride) add_matrix(gradient.A, gA, 0, gs);
        if (gradient.Q.data && !gradient.Q.time_stride) add_matrix(gradient.Q, gQ, 0, gs);
        if (gradient.c.data && !gradient.c.time_stride)
            for (index_t i = 0; i < n; ++i) gradient.c.at(series_, 0)[i] += gs * gc[i];
        if (gradient.P.data) add_matrix(gradient.P, gP, 0, gs);
        if (gradient.m.data)
            for (index_t i = 0; i < n; ++i)
                for (index_t j = 0; j < q; ++j) gradient.m.at(series_, 0)[i * q + j] += gs * gm[j * ld + i];
    }

  private:
    // A pivot of H of at least this part of the entry it was computed from leaves enough digits to integrate out its direction.
    static constexpr double well_determined = 1e-4;

    // Entries of the rows of a matrix that are not zero: those of row i are first[i], ..., first[i + 1] - 1.
    struct Entries {
        double* value;
        std::int32_t *column, *first;
    };

    template <class Take>
    static double* take_zeros(Take take, index_t count) {
        double* const start = take(count);
        clear(start, count);
        return start;
    }
    static void copy(const double* from, double* to, index_t count) {
        for (index_t e = 0; e < count; ++e) to[e] = from[e];
    }
    bool is_missing(index_t t) const {
        const double y = *model_.y.at(series_, t);
        return y != y;
    }
    Vec load(const double* x) const { return *reinterpret_cast<const Vec*>(x); }
    void store(double* x, Vec value) const { *reinterpret_cast<Vec*>(x) = value; }
    // target += factor * x, for one padded row.
    [[gnu::always_inline]] void add_row(double* target, double factor, const double* x) const {
        const Vec f = S::fill(factor);
        for (index_t j = 0; j < ld; j += W) store(target + j, load(target + j) + f * load(x + j));
    }
    double dot(const double* x, const double* y) const {
        double sum = 0.0;
        for (index_t i = 0; i < n; ++i) sum += x[i] * y[i];
        return sum;
    }
    double see(const double* x) const {
        double sum = 0.0;
        for (index_t e = 0; e < seen_count_; ++e) sum += b[e] * x[seen[e]];
        return sum;
    }

    // Reads the operands at time t that vary with time, or with `all` every operand.
    void load_model(index_t t, bool all) {
        if (all || model_.A.time_stride) {
            const double* const x = model_.A.at(series_, t);
            find_entries(A, x, n, 1);
            find_entries(At, x, 1, n);
        }
        if (all || model_.B.time_stride) {
            const double* const x = model_.B.at(series_, t);
            seen_count_ = 0;
            for (index_t j = 0; j < n; ++j)
                if (x[j] != 0.0) {
                    seen[seen_count_] = static_cast<std::int32_t>(j);
                    b[seen_count_++] = x[j];
                }
        }
        if (all || model_.Q.time_stride)
            for (index_t i = 0; i < n; ++i)
                for (index_t j = 0; j <= i; ++j) Q[i * ld + j] = Q[j * ld + i] = model_.Q.at(series_, t)[i * n + j];
        if (all || model_.c.time_stride) copy(model_.c.at(series_, t), c, n);
    }
    void find_entries(Entries& entries, const double* x, index_t row, index_t col) const {
        std::int32_t count = 0;
        for (index_t i = 0; i < n; ++i) {
            entries.first[i] = count;
            for (index_t j = 0; j < n; ++j)
                if (x[i * row + j * col] != 0.0) {
                    entries.column[count] = static_cast<std::int32_t>(j);
                    entries.value[count++] = x[i * row + j * col];
                }
        }
        entries.first[n] = count;
    }

    // C := X B, or C := X B + start, for padded matrices B, C and start.
    void multiply_entries(const Entries& X, const double* B, double* C, const double* start) const {
        for (index_t i = 0; i < n; ++i) {
            const std::int32_t first = X.first[i], end = X.first[i + 1];
            for (index_t j = 0; j < ld; j += W) {
                Vec sum = start ? load(start + i * ld + j) : Vec{};
                for (std::int32_t e = first; e < end; ++e) sum += S::fill(X.value[e]) * load(B + X.column[e] * ld + j);
                store(C + i * ld + j, sum);
            }
        }
    }
    void transpose_padded(const double* X, double* Xt) const {
        for (index_t i = 0; i < ld; i += W)
            for (index_t j = 0; j < ld; j += W) {
                Vec block[W];
#pragma GCC unroll 8
                for (index_t l = 0; l < W; ++l) block[l] = load(X + (i + l) * ld + j);
                S::transpose(block);
#pragma GCC unroll 8
                for (index_t l = 0; l < W; ++l) store(Xt + (j + l) * ld + i, block[l]);
            }
    }
    void mirror_padded(double* X) const {
        for (index_t i = 1; i < n; ++i)
            for (index_t j = 0; j < i; ++j) X[j * ld + i] = X[i * ld + j];
    }
    // C := X B X' (+ start), B symmetric.
    void multiply_both_sides(const Entries& X, const double* B, double* C, const double* start) {
        multiply_entries(X, B, T1, nullptr);
        transpose_padded(T1, T2);
        multiply_entries(X, T2, C, start);
    }
    // y := X x.
    void multiply_vector(const Entries& X, const double* x, double* y) const {
        for (index_t i = 0; i < n; ++i) {
            double sum = 0.0;
            for (std::int32_t e = X.first[i]; e < X.first[i + 1]; ++e) sum += X.value[e] * x[X.column[e]];
            y[i] = sum;
        }
    }

    // v := y - B m for each column, d := P B'; returns the variance of the innovation.
    double observe(index_t t, double R) {
        for (index_t j = 0; j < q; ++j) v[j] = -see(m + j * ld);
        v[0] += *model_.y.at(series_, t);
        for (index_t j = 0; j < ld; j += W) {
            Vec sum{};
            for (index_t e = 0; e < seen_count_; ++e) sum += S::fill(b[e]) * load(P + seen[e] * ld + j);
            store(d + j, sum);
        }
        return R + see(d);
    }

    // mf, Pf := the filtered moments; the record of the step gets 1 / S, the innovations and the gain.
    void update(double R, double over, double* record) {
        double *const u = record + 1, *const k = record + 8 * count_front_blocks();
        record[0] = over;
        for (index_t j = 0; j < q; ++j) u[j] = v[j] * over;
        const Vec scale = S::fill(over);
        for (index_t j = 0; j < ld; j += W) store(k + j, scale * load(d + j));
        for (index_t j = 0; j < q; ++j) {
            copy(m + j * ld, mf + j * ld, ld);
            add_row(mf + j * ld, v[j], k);
        }
        for (index_t i = 0; i < n; ++i) {
            const Vec factor = S::fill(d[i]);
            for (index_t j = 0; j < ld; j += W)
                store(Pf + i * ld + j, load(P + i * ld + j) - factor * load(d + j) * scale);
        }
        if (R * over > 1e-4) return;
        // Pf B' = k R is small here, but a difference of large numbers. Joseph's form of the update keeps its digits.
        for (index_t j = 0; j < ld; j += W) {
            Vec sum = S::fill(R) * load(k + j);
            for (index_t e = 0; e < seen_count_; ++e) sum -= S::fill(b[e]) * load(Pf + seen[e] * ld + j);
            store(h + j, sum);
        }
        for (index_t i = 0; i < n; ++i) add_row(Pf + i * ld, h[i], k);
        mirror_padded(Pf);
    }

    // Blocks of 8 numbers before the gain in a record: 1 / S and the innovations of all columns.
    index_t count_front_blocks() const { return (q + 8) / 8; }
    index_t get_record_size() const {
        return 8 * count_front_blocks() + (ld + 7) / 8 * 8 + (keeps_moments_ ? (q + n) * ld + 8 : 0) / 8 * 8;
    }
    double* finish_record(double* record) const {
        if (keeps_moments_) {
            double* const moments = record + 8 * count_front_blocks() + (ld + 7) / 8 * 8;
            copy(mf, moments, q * ld);
            copy(Pf, moments + q * ld, n * ld);
        }
        return record + get_record_size();
    }

    void predict(index_t t) {
        multiply_both_sides(A, Pf, P, Q);
        if (t % 8 == 0) mirror_padded(P);
        for (index_t j = 0; j < q; ++j) multiply_vector(A, mf + j * ld, m + j * ld);
        for (index_t i = 0; i < n; ++i) m[i] += c[i];
    }

    // `inverse` := the Cholesky factor of H. Returns -1, or the first direction whose pivot is less than `part` of its entry of H.
    // On success the diagonal of G becomes that of the factor.
    index_t factor_information(double part) {
        for (index_t i = 1; i < q; ++i)
            for (index_t j = 1; j <= i; ++j) {
                double sum = G[i * q + j];
                for (index_t k = 1; k < j; ++k) sum -= inverse[i * q + k] * inverse[j * q + k];
                if (i == j && !(sum > part * G[i * q + i] && sum <= std::numeric_limits<double>::max())) return i - 1;
                inverse[i * q + j] = i == j ? __builtin_sqrt(sum) : sum / inverse[j * q + j];
            }
        for (index_t i = 1; i < q; ++i) G[i * q + i] = inverse[i * q + i];
        return -1;
    }

    // Integrates out the flat directions at the start of step t, after factor_information. Returns g00 - g' H^-1 g.
    double collapse(index_t t) {
        double quadratic = G[0];
        // L^-1 in E; then H^-1 = L^-T L^-1.
        clear(E, q * q);
        for (index_t j = 1; j < q; ++j)
            for (index_t i = j; i < q; ++i) {
                double sum = i == j ? 1.0 : 0.0;
                for (index_t k = j; k < i; ++k) sum -= inverse[i * q + k] * E[k * q + j];
                E[i * q + j] = sum / inverse[i * q + i];
            }
        for (index_t i = 1; i < q; ++i) {
            double sum = 0.0;
            for (index_t k = 1; k <= i; ++k) sum += E[i * q + k] * G[k * q];
            quadratic -= sum * sum;
        }
        for (index_t i = 1; i < q; ++i)
            for (index_t j = 1; j <= i; ++j) {
                double sum = 0.0;
                for (index_t k = i; k < q; ++k) sum += E[k * q + i] * E[k * q + j];
                inverse[i * q + j] = inverse[j * q + i] = sum;
            }
        for (index_t i = 1; i < q; ++i) {
            z[i] = 0.0;
            for (index_t k = 1; k < q; ++k) z[i] -= inverse[i * q + k] * G[k * q];
        }
        copy(m, M, q * ld);
        for (index_t j = 1; j < q; ++j) add_row(m, z[j], M + j * ld);
        for (index_t j = 1; j < q; ++j) {
            clear(h, ld);
            for (index_t k = 1; k < q; ++k) add_row(h, inverse[j * q + k], M + k * ld);
            for (index_t i = 0; i < n; ++i) add_row(P + i * ld, M[j * ld + i], h);
        }
        mirror_padded(P);
        collapse_ = t;
        q = 1;
        return quadratic;
    }

    // The adjoint of `collapse`: gm and gP become those before it, and gG that of G.
    void expand() {
        q = 1 + flat_;
        for (index_t j = 1; j < q; ++j) {
            a[j] = dot(M + j * ld, gm);
            clear(MP + j * ld, ld);
            for (index_t i = 0; i < n; ++i) add_row(MP + j * ld, M[j * ld + i], gP + i * ld);
        }
        // E = H^-1 (M' gP M) H^-1, by gG as a workspace; gu = H^-1 M' gm.
        for (index_t i = 1; i < q; ++i)
            for (index_t j = 1; j < q; ++j) E[i * q + j] = dot(M + i * ld, MP + j * ld);
        for (index_t i = 1; i < q; ++i) {
            gu[i] = 0.0;
            for (index_t j = 1; j < q; ++j) {
                gu[i] += inverse[i * q + j] * a[j];
                double sum = 0.0;
                for (index_t k = 1; k < q; ++k) sum += inverse[i * q + k] * E[k * q + j];
                gG[i * q + j] = sum;
            }
        }
        for (index_t i = 1; i < q; ++i)
            for (index_t j = 1; j < q; ++j) {
                double sum = 0.0;
                for (index_t k = 1; k < q; ++k) sum += gG[i * q + k] * inverse[k * q + j];
                E[i * q + j] = sum;
            }
        gG[0] = 0.5;
        for (index_t i = 1; i < q; ++i) {
            gG[i] = gG[i * q] = 0.5 * (z[i] - gu[i]);
            for (index_t j = 1; j < q; ++j)
                gG[i * q + j] = 0.5 * (z[i] * z[j] + inverse[i * q + j] - gu[i] * z[j] - z[i] * gu[j]) - E[i * q + j];
        }
        for (index_t j = 1; j < q; ++j) {
            clear(gm + j * ld, ld);
            add_row(gm + j * ld, z[j], gm);
            for (index_t k = 1; k < q; ++k) add_row(gm + j * ld, 2.0 * inverse[j * q + k], MP + k * ld);
        }
    }

    void add_matrix(const Varying<double>& target, const double* source, index_t t, double gs) const {
        double* const x = target.at(series_, t);
        for (index_t i = 0; i < n; ++i)
            for (index_t j = 0; j < n; ++j) x[i * n + j] += gs * source[i * ld + j];
    }
    void add_number(const Varying<double>& target, index_t t, double gs, double g, double& sum) const {
        if (target.time_stride)
            *target.at(series_, t) += gs * g;
        else
            sum += g;
    }

    // From cotangents of the moments predicted for t + 1 to gmf and Pf, those of the moments filtered at t.
    void reverse_prediction(index_t t, const double* record, const KalmanOperands<double>& gradient, double gs) {
        if (gradient.Q.data) {
            if (gradient.Q.time_stride)
                add_matrix(gradient.Q, gP, t, gs);
            else
                for (index_t e = 0; e < n * ld; e += W) store(gQ + e, load(gQ + e) + load(gP + e));
        }
        if (gradient.c.data) {
            if (gradient.c.time_stride)
                for (index_t i = 0; i < n; ++i) gradient.c.at(series_, t)[i] += gs * gm[i];
            else
                for (index_t i = 0; i < n; ++i) gc[i] += gm[i];
        }
        if (gradient.A.data) {
            // gA += gm mf' + 2 gP A Pf
            const double* const moments = record + 8 * count_front_blocks() + (ld + 7) / 8 * 8;
            if (gradient.A.time_stride) clear(gA, ld * ld);
            multiply_entries(A, moments + q * ld, T1, nullptr);
            for (index_t i = 0; i < n; ++i) {
                for (index_t k = 0; k < n; ++k) add_row(gA + i * ld, 2.0 * gP[i * ld + k], T1 + k * ld);
                for (index_t j = 0; j < q; ++j) add_row(gA + i * ld, gm[j * ld + i], moments + j * ld);
            }
            if (gradient.A.time_stride) add_matrix(gradient.A, gA, t, gs);
        }
        multiply_both_sides(At, gP, Pf, nullptr);
        for (index_t j = 0; j < q; ++j) multiply_vector(At, gm + j * ld, gmf + j * ld);
    }

    // From cotangents of the filtered moments to gm and gP, those of the predicted ones: see lane_kalman.h. With h = -gPf k +
    // B' (k' gPf k + gS) / 2 + gmf u' / 2, gP = gPf + B' h' + h B. Returns the gradient of R.
    double reverse_update(index_t t, const double* record, const KalmanOperands<double>& gradient, double gs) {
        const double over = record[0];
        const double *const u = record + 1, *const k = record + 8 * count_front_blocks();
        clear(h, ld);
        for (index_t i = 0; i < n; ++i) add_row(h, -k[i], Pf + i * ld);
        const double kgk = -dot(k, h);
        double gS = over;
        for (index_t i = 0; i < q; ++i) {
            double sum = 0.0;
            if (q > 1)
                for (index_t j = 0; j < q; ++j) sum += 2.0 * gG[i * q + j] * u[j];
            else
                sum = u[0];
            const double w = dot(k, gmf + i * ld);
            gS -= (sum + 2.0 * w) * u[i];
            gu[i] = sum + w;
            add_row(h, 0.5 * u[i], gmf + i * ld);
        }
        gS *= 0.5;
        for (index_t e = 0; e < seen_count_; ++e) h[seen[e]] += 0.5 * b[e] * (kgk + gS);
        std::swap(gP, Pf);
        std::swap(gm, gmf);
        for (index_t e = 0; e < seen_count_; ++e) {
            add_row(gP + seen[e] * ld, b[e], h);
            for (index_t i = 0; i < n; ++i) gP[i * ld + seen[e]] += b[e] * h[i];
            for (index_t j = 0; j < q; ++j) gm[j * ld + seen[e]] -= b[e] * gu[j];
        }
        if (gradient.y.data) *gradient.y.at(series_, t) += gs * gu[0];
        return gS + kgk;
    }

    const index_t n, ld, flat_;
    index_t q, steps_ = 0, collapse_ = 0, seen_count_ = 0;
    bool keeps_moments_ = false;
    const KalmanOperands<const double>& model_;
    const index_t series_;
    double *P, *Pf, *T1, *T2, *gP, *gQ, *gA, *Q;
    double *m, *mf, *gm, *gmf, *M, *MP;
    double *d, *h, *c, *gc, *G, *gG, *inverse, *E, *z, *a, *v, *gu, *b;
    Entries A, At;
    std::int32_t* seen;
    double *kept, *last_record_ = nullptr;
};
