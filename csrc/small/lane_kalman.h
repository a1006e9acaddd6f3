// The Kalman filter and its adjoint, one series per lane. Included only by isa_kernels.cpp.
//
// One step of the filter, with predicted moments m, P of the state:
//
//     observe   v = y - B m, S = B P B' + R = L L', K = P B' S^-1, u = S^-1 v,
//               s += v'u / 2 + log det L + p/2 log(2 pi)
//               m+ = m + K v, P+ = (I - K B) P (I - K B)' + K R K'
//     predict   m  = A m+ + c, P = A P+ A' + Q
//
// A missing observation i is replaced by: row i of B zero, row and column i of R those of the identity, v_i = 0. Then u_i and
// column i of K are zero and log l_ii = 0, so it does not change the result.
//
// The adjoint runs backwards over stored predicted moments and recomputes `observe` from them. K minimises P+, so the derivative
// of P+ with respect to K is zero and K can be treated as constant there.

// The filter and its adjoint for one group of series: their model at the current time, their moments and gradients.
template <class T, bool Wide>
class KalmanSteps {
    using S = Numbers<T, Wide>;
    using V = typename S::V;
    static constexpr index_t W = S::width;

  public:
    KalmanSteps(const KalmanSizes& sizes, const KalmanOperands<const T>& model, void* memory, index_t begin,
                index_t end)
        : n(sizes.states), p(sizes.observations), sizes_(sizes), model_(model), begin_(begin),
          filled_(end - begin) {
        V* next = reinterpret_cast<V*>(memory);
        const auto take = [&next](index_t count) {
            V* const start = next;
            next += count;
            return start;
        };
        for (V** matrix : {&A, &At, &Q, &P, &Pf, &J, &Jt, &X, &gP, &gPf, &gA, &gQ}) *matrix = take(n * n);
        for (V** matrix : {&B, &seenB, &seenBt, &K, &Kt, &BP, &KR, &gB, &Z}) *matrix = take(n * p);
        for (V** matrix : {&R, &seenR, &L, &Sinv, &gS, &gR, &Y}) *matrix = take(p * p);
        for (V** vector : {&m, &mf, &c, &gm, &gmf, &gc, &Btu, &Pg}) *vector = take(n);
        for (V** vector : {&y, &v, &u, &w, &gv, &seen, &pivots, &inverse}) *vector = take(p);
        one = S::fill(T(1));
        load(model_.m, m, n, 0);
        load(model_.P, P, n * n, 0);
        mirror_lower(P, n);
        find_last_steps();
        load_model(0, true);
    }

    // Steps up to the last observation of any series; later ones do not change the result.
    index_t steps() const { return steps_; }

    // s := the negative log likelihood of each series; status := its first failure.
    void forward(T* s, KalmanStatus* status) {
        for (index_t l = 0; l < filled_; ++l) status[begin_ + l] = {0, 0};
        V quadratic{}, lost{}, mantissa = one;
        index_t exponent[W] = {}, observed[W] = {};
        for (index_t t = 0; t < steps_; ++t) {
            if (t) load_model(t, false);
            const bool good = observe(t);
            V q{};
            for (index_t i = 0; i < p; ++i) q += v[i] * u[i];
            if (!(good & S::all((q <= S::fill(std::numeric_limits<T>::max())) & (q >= V{}))))
                note_failure(t, q, status);
            // Kahan summation, because thousands of steps are added in single precision.
            const V term = q - lost, sum = quadratic + term;
            lost = (sum - quadratic) - term;
            quadratic = sum;
            for (index_t i = 0; i < p; ++i) {
                mantissa *= pivots[i];
                if (i % 4 == 3 || i == p - 1) normalise(mantissa, exponent);
            }
            for (index_t i = 0; i < p; ++i)
                for (index_t l = 0; l < filled_; ++l) observed[l] += S::get(seen[i], l) != T(0);
            if (t + 1 < steps_) predict(t);
        }
        for (index_t l = 0; l < filled_; ++l) {
            const double log_det = __builtin_log(double(S::get(mantissa, l))) + exponent[l] * 0.6931471805599453094;
            s[begin_ + l] = T(0.5 * (double(S::get(quadratic, l)) + log_det + observed[l] * 1.8378770664093454836));
        }
    }

    // Adds the gradients of each series to `gradient`. `kept`: see KalmanReverse.
    void reverse(const KalmanOperands<T>& gradient, const T* gs, index_t segment, V* kept) {
        gs_ = V{};
        for (index_t l = 0; l < filled_; ++l) S::set(gs_, l, gs[begin_ + l]);
        for (V* matrix : {gP, gA, gQ}) clear(matrix, n * n);
        clear(gB, n * p);
        clear(gR, p * p);
        clear(gm, n);
        clear(gc, n);
        if (steps_ == 0) return;
        V* const marks = kept + segment * sizes_.moments();
        const index_t segments = (steps_ + segment - 1) / segment;
        for (index_t k = 0; k < segments; ++k) {
            store_moments(marks + k * sizes_.moments());
            if (k + 1 < segments) run_filter(k * segment, (k + 1) * segment, true, nullptr);
        }
        for (index_t k = segments - 1; k >= 0; --k) {
            const index_t first = k * segment, end = first + segment < steps_ ? first + segment : steps_;
            load_moments(marks + k * sizes_.moments());
            run_filter(first, end, false, kept);
            for (index_t t = end - 1; t >= first; --t) {
                load_moments(kept + (t - first) * sizes_.moments());
                load_model(t, false);
                observe(t);
                step_back(t, gradient);
            }
        }
        flush(gradient.A, gA, n * n, 0, false);
        flush(gradient.B, gB, n * p, 0, false);
        flush(gradient.Q, gQ, n * n, 0, false);
        flush(gradient.R, gR, p * p, 0, false);
        flush(gradient.c, gc, n, 0, false);
        add_to(gradient.m, gm, n, 0);
        add_to(gradient.P, gP, n * n, 0);
    }

  private:
    // target := the operand of each series at time t. Lanes without a series repeat the last one.
    void load(const Varying<const T>& source, V* target, index_t size, index_t t) const {
        if (W > 1 && source.series_stride == 0) {
            const T* const x = source.at(0, t);
            for (index_t e = 0; e < size; ++e) target[e] = S::fill(x[e]);
            return;
        }
        for (index_t l = 0; l < W; ++l) {
            const T* const x = source.at(begin_ + (l < filled_ ? l : filled_ - 1), t);
            for (index_t e = 0; e < size; ++e) S::set(target[e], l, x[e]);
        }
    }

    void add_to(const Varying<T>& target, const V* source, index_t size, index_t t) const {
        if (!target.data) return;
        for (index_t l = 0; l < filled_; ++l) {
            T* const x = target.at(begin_ + l, t);
            for (index_t e = 0; e < size; ++e) x[e] += S::get(source[e], l);
        }
    }

    // Adds a gradient to its target and clears it: after each step (`step`) if the operand varies with time, else at the end.
    void flush(const Varying<T>& target, V* source, index_t size, index_t t, bool step) const {
        if (!target.data || (target.time_stride != 0) != step) return;
        add_to(target, source, size, t);
        clear(source, size);
    }

    // Loads the operands at time t that vary with time, or with `all` every operand. A is also stored transposed, for products
    // with A'.
    void load_model(index_t t, bool all) {
        if (all || model_.A.time_stride) {
            load(model_.A, A, n * n, t);
            transpose_into(A, At, n, n);
        }
        if (all || model_.B.time_stride) load(model_.B, B, n * p, t);
        if (all || model_.Q.time_stride) load(model_.Q, Q, n * n, t);
        if (all || model_.R.time_stride) {
            load(model_.R, R, p * p, t);
            mirror_lower(R, p);
        }
        if (all || model_.c.time_stride) load(model_.c, c, n, t);
    }

    void find_last_steps() {
        steps_ = 0;
        for (index_t l = 0; l < W; ++l) {
            const index_t series = begin_ + (l < filled_ ? l : filled_ - 1);
            index_t last = sizes_.times;
            for (bool found = false; !found && last > 0; last -= !found) {
                const T* const x = model_.y.at(series, last - 1);
                for (index_t i = 0; i < p; ++i) found |= x[i] == x[i];
            }
            last_[l] = last - 1;
            steps_ = steps_ > last ? steps_ : last;
        }
    }

    // Computes filtered from predicted moments, and everything that the adjoint reads. Returns whether S is positive definite.
    bool observe(index_t t) {
        load(model_.y, y, p, t);
        bool complete = true;
        for (index_t i = 0; i < p; ++i) {
            const auto there = y[i] == y[i];
            seen[i] = there ? one : V{};
            y[i] = there ? y[i] : V{};
            complete &= S::all(there);
        }
        for (index_t i = 0; i < p; ++i)
            for (index_t k = 0; k < n; ++k) {
                const V b = complete ? B[i * n + k] : seen[i] * B[i * n + k];
                seenB[i * n + k] = b;
                seenBt[k * p + i] = b;
            }
        for (index_t i = 0; i < p; ++i)
            for (index_t j = 0; j < p; ++j) {
                const V r = complete ? R[i * p + j] : seen[i] * seen[j] * R[i * p + j];
                seenR[i * p + j] = complete || i != j ? r : r + (one - seen[i]);
            }
        apply<Into::set>(seenB, n, 1, m, v, p, n);
        for (index_t i = 0; i < p; ++i) v[i] = complete ? y[i] - v[i] : seen[i] * (y[i] - v[i]);

        multiply<Into::set, false>(seenB, n, 1, P, BP, p, n, n);
        for (index_t e = 0; e < p * p; ++e) L[e] = seenR[e];
        multiply<Into::add, true>(BP, n, 1, seenBt, L, p, n, p);
        const bool good = factor_innovation();

        // K' = S^-1 B P and u = S^-1 v.
        for (index_t e = 0; e < n * p; ++e) Kt[e] = BP[e];
        for (index_t i = 0; i < p; ++i) u[i] = v[i];
        solve(Kt, n);
        solve(u, 1);
        transpose_into(Kt, K, p, n);

        for (index_t i = 0; i < n; ++i)
            for (index_t j = 0; j < n; ++j) J[i * n + j] = i == j ? one : V{};
        multiply<Into::subtract, false>(K, p, 1, seenB, J, n, p, n);
        transpose_into(J, Jt, n, n);
        multiply<Into::set, false>(J, n, 1, P, X, n, n, n);
        multiply<Into::set, true>(X, n, 1, Jt, Pf, n, n, n);
        multiply<Into::set, false>(K, p, 1, seenR, KR, n, p, p);
        multiply<Into::add, true>(KR, p, 1, Kt, Pf, n, p, n);
        mirror_lower(Pf, n);
        for (index_t i = 0; i < n; ++i) mf[i] = m[i];
        apply<Into::add>(K, p, 1, v, mf, n, p);
        return good;
    }

    // L := its lower Cholesky factor, with 1 for a pivot that is not positive and finite. Returns whether there was none.
    bool factor_innovation() {
        const V largest = S::fill(std::numeric_limits<T>::max());
        bool good = true;
        for (index_t j = 0; j < p; ++j) {
            V pivot = L[j * p + j];
            for (index_t k = 0; k < j; ++k) pivot -= L[j * p + k] * L[j * p + k];
            pivots[j] = pivot;
            const auto fine = (pivot > V{}) & (pivot <= largest);
            good &= S::all(fine);
            const V root = S::root(fine ? pivot : one);
            inverse[j] = one / root;
            L[j * p + j] = root;
            for (index_t i = j + 1; i < p; ++i) {
                V acc = L[i * p + j];
                for (index_t k = 0; k < j; ++k) acc -= L[i * p + k] * L[j * p + k];
                L[i * p + j] = acc * inverse[j];
            }
        }
        return good;
    }

    // Z := (L L')^-1 Z, for p rows and `cols` columns.
    void solve(V* Z, index_t cols) const {
        for (index_t i = 0; i < p; ++i)
            for (index_t j = 0; j < cols; ++j) {
                V acc = Z[i * cols + j];
                for (index_t k = 0; k < i; ++k) acc -= L[i * p + k] * Z[k * cols + j];
                Z[i * cols + j] = acc * inverse[i];
            }
        for (index_t i = p - 1; i >= 0; --i)
            for (index_t j = 0; j < cols; ++j) {
                V acc = Z[i * cols + j];
                for (index_t k = i + 1; k < p; ++k) acc -= L[k * p + i] * Z[k * cols + j];
                Z[i * cols + j] = acc * inverse[i];
            }
    }

    // Predicts the moments at t + 1. A series that has ended keeps its moments: nobody reads them, but they must not overflow.
    void predict(index_t t) {
        V running{};
        bool all = true;
        for (index_t l = 0; l < W; ++l) {
            S::set(running, l, t < last_[l] ? T(1) : T(0));
            all &= t < last_[l];
        }
        const auto runs = running > V{};
        multiply<Into::set, false>(A, n, 1, Pf, X, n, n, n);
        for (index_t i = 0; i < n; ++i)
            for (index_t j = 0; j <= i; ++j) J[i * n + j] = Q[i * n + j];
        multiply<Into::add, true>(X, n, 1, At, J, n, n, n);
        for (index_t i = 0; i < n; ++i)
            for (index_t j = 0; j <= i; ++j)
                P[i * n + j] = all ? J[i * n + j] : runs ? J[i * n + j] : P[i * n + j];
        mirror_lower(P, n);
        for (index_t i = 0; i < n; ++i) Pg[i] = c[i];
        apply<Into::add>(A, n, 1, mf, Pg, n, n);
        for (index_t i = 0; i < n; ++i) m[i] = all ? Pg[i] : runs ? Pg[i] : m[i];
    }

    // Runs the filter from the predicted moments at `first` to those at `end` (`past`) or at the step before. Stores those of each
    // step in `kept` unless that is null.
    void run_filter(index_t first, index_t end, bool past, V* kept) {
        for (index_t t = first; t < end; ++t) {
            if (kept) store_moments(kept + (t - first) * sizes_.moments());
            if (t + 1 == end && !past) return;
            load_model(t, false);
            observe(t);
            predict(t);
        }
    }

    void store_moments(V* memory) const {
        for (index_t i = 0; i < n; ++i) *memory++ = m[i];
        for (index_t i = 0; i < n; ++i)
            for (index_t j = 0; j <= i; ++j) *memory++ = P[i * n + j];
    }
    void load_moments(const V* memory) {
        for (index_t i = 0; i < n; ++i) m[i] = *memory++;
        for (index_t i = 0; i < n; ++i)
            for (index_t j = 0; j <= i; ++j) P[i * n + j] = P[j * n + i] = *memory++;
    }

    // Computes the cotangents gm, gP of the moments predicted for t from those for t + 1, after observe(t):
    //
    //     gA = gm m+' + 2 gP A P+, gQ = gP, gc = gm, gm+ = A' gm, gP+ = A' gP A
    //     w = K' gm+, gv = gs u + w = gy, gS = (gs (S^-1 - u u') - w u' - u w') / 2
    //     gR = gS + K' gP+ K, gB = 2 gS B P + u (P gm+)' - 2 K' gP+ P+ - gv m'
    //     gm = gm+ - B' gv, gP = (I - K B)' gP+ (I - K B) + B' gS B + sym(gm+ (B' u)')
    void step_back(index_t t, const KalmanOperands<T>& gradient) {
        const V two = S::fill(T(2)), half = S::fill(T(0.5));
        if (t + 1 < steps_) {
            if (gradient.A.data) {
                multiply<Into::set, false>(A, n, 1, Pf, X, n, n, n);
                for (index_t e = 0; e < n * n; ++e) X[e] *= two;
                multiply<Into::add, false>(gP, n, 1, X, gA, n, n, n);
                for (index_t i = 0; i < n; ++i)
                    for (index_t j = 0; j < n; ++j) gA[i * n + j] += gm[i] * mf[j];
            }
            for (index_t e = 0; e < n * n; ++e) gQ[e] += gP[e];
            for (index_t i = 0; i < n; ++i) gc[i] += gm[i];
            multiply<Into::set, false>(gP, n, 1, A, X, n, n, n);
            multiply<Into::set, true>(At, n, 1, X, gPf, n, n, n);
            mirror_lower(gPf, n);
            apply<Into::set>(At, n, 1, gm, gmf, n, n);
        } else {
            clear(gPf, n * n);
            clear(gmf, n);
        }
        flush(gradient.A, gA, n * n, t, true);
        flush(gradient.Q, gQ, n * n, t, true);
        flush(gradient.c, gc, n, t, true);

        apply<Into::set>(Kt, n, 1, gmf, w, p, n);
        for (index_t i = 0; i < p; ++i) gv[i] = gs_ * u[i] + w[i];
        add_to(gradient.y, gv, p, t);
        for (index_t i = 0; i < p; ++i)
            for (index_t j = 0; j < p; ++j) Sinv[i * p + j] = i == j ? one : V{};
        solve(Sinv, p);
        for (index_t i = 0; i < p; ++i)
            for (index_t j = 0; j <= i; ++j)
                gS[i * p + j] = gS[j * p + i] =
                    half * (gs_ * (Sinv[i * p + j] - u[i] * u[j]) - w[i] * u[j] - u[i] * w[j]);

        multiply<Into::set, false>(Kt, n, 1, gPf, KR, p, n, n);  // K' gP+, p x n
        if (gradient.R.data) {
            multiply<Into::set, true>(KR, n, 1, K, Y, p, n, p);
            for (index_t i = 0; i < p; ++i)
                for (index_t j = 0; j <= i; ++j) {
                    const V g = seen[i] * seen[j] * (gS[i * p + j] + Y[i * p + j]);
                    gR[i * p + j] += g;
                    if (i != j) gR[j * p + i] += g;
                }
            flush(gradient.R, gR, p * p, t, true);
        }
        multiply<Into::set, false>(gS, p, 1, BP, Z, p, p, n);
        if (gradient.B.data) {
            apply<Into::set>(P, n, 1, gmf, Pg, n, n);
            for (index_t i = 0; i < p; ++i)
                for (index_t k = 0; k < n; ++k)
                    gB[i * n + k] += two * Z[i * n + k] + u[i] * Pg[k] - gv[i] * m[k];
            for (index_t e = 0; e < n * p; ++e) KR[e] *= two;
            multiply<Into::subtract, false>(KR, n, 1, Pf, gB, p, n, n);
            flush(gradient.B, gB, n * p, t, true);
        }

        multiply<Into::set, false>(gPf, n, 1, J, X, n, n, n);
        multiply<Into::set, true>(Jt, n, 1, X, gP, n, n, n);
        multiply<Into::set, false>(gS, p, 1, seenB, Z, p, p, n);
        multiply<Into::add, true>(seenBt, p, 1, Z, gP, n, p, n);
        apply<Into::set>(seenBt, p, 1, u, Btu, n, p);
        for (index_t i = 0; i < n; ++i)
            for (index_t j = 0; j <= i; ++j) gP[i * n + j] += half * (gmf[i] * Btu[j] + Btu[i] * gmf[j]);
        mirror_lower(gP, n);
        for (index_t i = 0; i < n; ++i) gm[i] = gmf[i];
        apply<Into::subtract>(seenBt, p, 1, gv, gm, n, p);
    }

    // Keeps a product of pivots in range as mantissa * 2^exponent, so that one logarithm at the end is enough.
    static void normalise(V& mantissa, index_t (&exponent)[W]) {
        for (index_t l = 0; l < W; ++l) {
            const T x = S::get(mantissa, l);
            if (x > T(1e-3) && x < T(1e3)) continue;
            int e = 0;
            S::set(mantissa, l, T(__builtin_frexp(double(x), &e)));
            exponent[l] += e;
        }
    }

    void note_failure(index_t t, V q, KalmanStatus* status) const {
        const auto finite = [](T x) { return x - x == T(0); };
        for (index_t l = 0; l < filled_; ++l) {
            if (status[begin_ + l].code) continue;
            std::int32_t code = 0;
            for (index_t i = 0; i < p && !code; ++i) {
                const T pivot = S::get(pivots[i], l);
                const std::int32_t order = static_cast<std::int32_t>(i + 1);
                code = !finite(pivot) ? -order : pivot > T(0) ? 0 : order;
            }
            if (!code && !finite(S::get(q, l))) code = -static_cast<std::int32_t>(p + 1);
            if (code) status[begin_ + l] = {t, code};
        }
    }

    const index_t n, p;
    const KalmanSizes sizes_;
    const KalmanOperands<const T>& model_;
    const index_t begin_, filled_;
    index_t steps_ = 0, last_[W];
    V one, gs_;
    V *A, *At, *Q, *P, *Pf, *J, *Jt, *X, *gP, *gPf, *gA, *gQ;
    V *B, *seenB, *seenBt, *K, *Kt, *BP, *KR, *gB, *Z;
    V *R, *seenR, *L, *Sinv, *gS, *gR, *Y;
    V *m, *mf, *c, *gm, *gmf, *gc, *Btu, *Pg;
    V *y, *v, *u, *w, *gv, *seen, *pivots, *inverse;
};

// Calls body(first, last) for groups of series that are computed together.
template <class T, bool Wide, class Body>
void for_series_groups(index_t begin, index_t end, Body body) {
    constexpr index_t W = Numbers<T, Wide>::width;
    for (index_t b = begin; b < end; b += W) body(b, end - b < W ? end : b + W);
}

template <class T, bool Wide>
void filter_groups(const KalmanForward<T>& task, index_t begin, index_t end, void* memory) {
    for_series_groups<T, Wide>(begin, end, [&](index_t first, index_t last) {
        KalmanSteps<T, Wide>(task.sizes, task.model, memory, first, last).forward(task.s, task.status);
    });
}

template <class T, bool Wide>
void reverse_groups(const KalmanReverse<T>& task, const KalmanOperands<T>& gradient, index_t begin, index_t end,
                       void* memory) {
    using V = typename Numbers<T, Wide>::V;
    for_series_groups<T, Wide>(begin, end, [&](index_t first, index_t last) {
        KalmanSteps<T, Wide>(task.sizes, task.model, memory, first, last)
            .reverse(gradient, task.gs, task.segment, reinterpret_cast<V*>(memory) + task.sizes.work());
    });
}

template <class T>
void kalman_forward(const KalmanForward<T>& task, bool wide, index_t begin, index_t end, void* memory) {
    if (wide) return filter_groups<T, true>(task, begin, end, memory);
    filter_groups<T, false>(task, begin, end, memory);
}

template <class T>
void kalman_reverse(const KalmanReverse<T>& task, const KalmanOperands<T>& gradient, bool wide, index_t begin,
                    index_t end, void* memory) {
    if (wide) return reverse_groups<T, true>(task, gradient, begin, end, memory);
    reverse_groups<T, false>(task, gradient, begin, end, memory);
}
