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
// P+ is computed as X + (K R - X B') K' with X = P - K (B P), which is the same in O(n^2 p). Products with A read only its
// entries that are not zero: structural models have one or two in a row.
//
// m, v and u have q = 1 + d columns if the prior is flat in d directions: see flat_prior.h.
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
        : n(sizes.states), p(sizes.observations), q(1 + sizes.flat), sizes_(sizes), model_(model), begin_(begin),
          filled_(end - begin) {
        V* next = reinterpret_cast<V*>(memory);
        const auto take = [&next](index_t count) {
            V* const start = next;
            next += count;
            return start;
        };
        for (V** matrix : {&A, &At, &Q, &P, &Pf, &X, &Xt, &gP, &gPf, &gA, &gQ}) *matrix = take(n * n);
        for (V** matrix : {&B, &seenB, &seenBt, &K, &Kt, &BP, &KR, &gB, &Z, &ug}) *matrix = take(n * p);
        for (V** matrix : {&R, &seenR, &L, &Sinv, &gS, &gR, &Y}) *matrix = take(p * p);
        for (V** columns : {&m, &mf, &gm, &gmf, &next_m}) *columns = take(n * q);
        for (V** columns : {&v, &u, &w, &gv, &uW}) *columns = take(p * q);
        flat_.place(take(3 * q * q), p, q);
        for (V** vector : {&c, &gc}) *vector = take(n);
        for (V** vector : {&y, &seen, &pivots, &inverse}) *vector = take(p);
        rows_.entries = reinterpret_cast<std::int32_t*>(take(n * (n + 1)));
        columns_.entries = reinterpret_cast<std::int32_t*>(take(n * (n + 1)));
        one = S::fill(T(1));
        load(model_.m, m, n * q, 0);
        load(model_.P, P, n * n, 0);
        mirror_lower(P, n);
        find_last_steps();
        load_model(0, true);
    }

    // Steps up to the last observation of any series; later ones do not change the result.
    index_t steps() const { return steps_; }

    // s := the negative log likelihood of each series; status := its first failure.
    void forward(T* s, KalmanStatus* status) { run_forward(s, status, steps_, nullptr, nullptr); }

    // Adds the gradients of each series to `gradient`, and writes values and failures as `forward` does unless s is null. `kept`: see
    // KalmanReverse.
    void reverse(const KalmanOperands<T>& gradient, const T* gs, T* s, KalmanStatus* status, index_t segment, V* kept) {
        gs_ = V{};
        for (index_t l = 0; l < filled_; ++l) S::set(gs_, l, gs[begin_ + l]);
        for (V* matrix : {gP, gA, gQ}) clear(matrix, n * n);
        clear(gB, n * p);
        clear(gR, p * p);
        clear(gm, n * q);
        clear(gc, n);
        V* const marks = kept + segment * sizes_.moments();
        run_forward(s, status, segment, marks, kept);
        if (steps_ == 0) return;
        const index_t segments = (steps_ + segment - 1) / segment;
        for (index_t k = segments - 1; k >= 0; --k) {
            const index_t first = k * segment, end = first + segment < steps_ ? first + segment : steps_;
            if (k + 1 < segments) {
                load_moments(marks + k * sizes_.moments());
                run_filter(first, end, kept);
            }
            for (index_t t = end - 1; t >= first; --t) {
                load_moments(kept + (t - first) * sizes_.moments());
                load_model(t, false);
                observe(t);
                reverse_step(t, gradient);
            }
        }
        flush(gradient.A, gA, n * n, 0, false);
        flush(gradient.B, gB, n * p, 0, false);
        flush(gradient.Q, gQ, n * n, 0, false);
        flush(gradient.R, gR, p * p, 0, false);
        flush(gradient.c, gc, n, 0, false);
        add_to(gradient.m, gm, n * q, 0);
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
            rows_.template find<S>(A, n);
            columns_.template find<S>(At, n);
        }
        if (all || model_.B.time_stride) load(model_.B, B, n * p, t);
        if (all || model_.Q.time_stride) load(model_.Q, Q, n * n, t);
        if (all || model_.R.time_stride) {
            load(model_.R, R, p * p, t);
            mirror_lower(R, p);
        }
        if (all || model_.c.time_stride) load(model_.c, c, n, t);
    }

    // Runs the filter over all steps; adds up G and the pivots, and computes values (s not null) and W. Stores the moments at the
    // start of each segment in `marks`, and those of all steps of the last segment in `kept`, unless they are null.
    void run_forward(T* s, KalmanStatus* status, index_t segment, V* marks, V* kept) {
        if (status)
            for (index_t l = 0; l < filled_; ++l) status[begin_ + l] = {0, 0};
        V mantissa = one;
        index_t exponent[W] = {}, observed[W] = {};
        flat_.reset();
        const index_t last = steps_ ? (steps_ - 1) / segment * segment : 0;
        for (index_t t = 0; t < steps_; ++t) {
            if (t) load_model(t, false);
            if (marks && t % segment == 0) store_moments(marks + t / segment * sizes_.moments());
            if (kept && t >= last) store_moments(kept + (t - last) * sizes_.moments());
            const bool good = observe(t);
            V size{};
            for (index_t i = 0; i < p; ++i) size += v[i * q] * u[i * q];
            if (status && !(good & S::all((size <= S::fill(std::numeric_limits<T>::max())) & (size >= V{}))))
                note_failure(t, size, status);
            flat_.add(v, u);
            for (index_t i = 0; i < p; ++i) {
                mantissa *= pivots[i];
                if (i % 4 == 3 || i == p - 1) normalise(mantissa, exponent);
            }
            for (index_t i = 0; i < p; ++i)
                for (index_t l = 0; l < filled_; ++l) observed[l] += S::get(seen[i], l) != T(0);
            if (t + 1 < steps_) predict(t);
        }
        const V quadratic = flat_.integrate_out([&](V pivot, index_t direction, auto fine) {
            if (status && !S::all(fine)) note_flat(fine ? one : V{}, direction, status);
            mantissa *= fine ? pivot : one;
            normalise(mantissa, exponent);
        });
        if (!s) return;
        for (index_t l = 0; l < filled_; ++l) {
            const double log_det = __builtin_log(double(S::get(mantissa, l))) + exponent[l] * 0.6931471805599453094;
            s[begin_ + l] = T(0.5 * (double(S::get(quadratic, l)) + log_det + observed[l] * 1.8378770664093454836));
        }
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
        clear(v, p * q);
        for (index_t i = 0; i < p; ++i) v[i * q] = y[i];  // zero where it is missing, like the row of B
        multiply<Into::subtract, false>(seenB, n, 1, m, v, p, n, q);

        multiply<Into::set, false>(seenB, n, 1, P, BP, p, n, n);
        for (index_t e = 0; e < p * p; ++e) L[e] = seenR[e];
        multiply<Into::add, true>(BP, n, 1, seenBt, L, p, n, p);
        const bool good = factor_innovation();

        // K' = S^-1 B P and u = S^-1 v.
        for (index_t e = 0; e < n * p; ++e) Kt[e] = BP[e];
        for (index_t e = 0; e < p * q; ++e) u[e] = v[e];
        solve(Kt, n);
        solve(u, q);
        transpose_into(Kt, K, p, n);

        for (index_t e = 0; e < n * n; ++e) Pf[e] = P[e];
        multiply<Into::subtract, false>(K, p, 1, BP, Pf, n, p, n);
        multiply<Into::set, false>(K, p, 1, seenR, KR, n, p, p);
        multiply<Into::subtract, false>(Pf, n, 1, seenBt, KR, n, n, p);
        multiply<Into::add, true>(KR, p, 1, Kt, Pf, n, p, n);
        mirror_lower(Pf, n);
        for (index_t e = 0; e < n * q; ++e) mf[e] = m[e];
        multiply<Into::add, false>(K, p, 1, v, mf, n, p, q);
        return good;
    }

    // L := its lower Cholesky factor, with 1 for a pivot that is not positive and finite. Returns whether all pivots were.
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

    // Predicts the moments at t + 1. A series that has ended keeps its moments: they are not read, but must not overflow.
    void predict(index_t t) {
        V running{};
        bool all = true;
        for (index_t l = 0; l < W; ++l) {
            S::set(running, l, t < last_[l] ? T(1) : T(0));
            all &= t < last_[l];
        }
        const auto runs = running > V{};
        multiply_sparse<Into::set, false>(A, rows_, Pf, X, n, n);
        transpose_into(X, Xt, n, n);
        for (index_t i = 0; i < n; ++i)
            for (index_t j = 0; j <= i; ++j) X[i * n + j] = Q[i * n + j];
        multiply_sparse<Into::add, true>(A, rows_, Xt, X, n, n);
        for (index_t i = 0; i < n; ++i)
            for (index_t j = 0; j <= i; ++j)
                P[i * n + j] = all ? X[i * n + j] : runs ? X[i * n + j] : P[i * n + j];
        mirror_lower(P, n);
        multiply_sparse<Into::set, false>(A, rows_, mf, next_m, n, q);
        for (index_t i = 0; i < n; ++i) next_m[i * q] += c[i];
        for (index_t e = 0; e < n * q; ++e) m[e] = all ? next_m[e] : runs ? next_m[e] : m[e];
    }

    // Runs the filter from the predicted moments at `first`, and stores those of each step before `end` in `kept`.
    void run_filter(index_t first, index_t end, V* kept) {
        for (index_t t = first; t < end; ++t) {
            store_moments(kept + (t - first) * sizes_.moments());
            if (t + 1 == end) return;
            load_model(t, false);
            observe(t);
            predict(t);
        }
    }

    void store_moments(V* memory) const {
        for (index_t e = 0; e < n * q; ++e) *memory++ = m[e];
        for (index_t i = 0; i < n; ++i)
            for (index_t j = 0; j <= i; ++j) *memory++ = P[i * n + j];
    }
    void load_moments(const V* memory) {
        for (index_t e = 0; e < n * q; ++e) m[e] = *memory++;
        for (index_t i = 0; i < n; ++i)
            for (index_t j = 0; j <= i; ++j) P[i * n + j] = P[j * n + i] = *memory++;
    }

    // Computes the cotangents gm, gP of the moments predicted for t from those for t + 1, after observe(t):
    //
    //     gA = gm m+' + 2 gP A P+, gQ = gP, gc = gm, gm+ = A' gm, gP+ = A' gP A
    //     w = K' gm+, gv = gs u W + w = gy, gS = (gs (S^-1 - u W u') - w u' - u w') / 2
    //     gR = gS + K' gP+ K, gB = 2 gS B P + u (P gm+)' - 2 K' gP+ P+ - gv m'
    //     gm = gm+ - B' gv, gP = (I - K B)' gP+ (I - K B) + B' gS B + sym(gm+ (B' u)')
    //
    // Of gc and gy the first column counts. W is 1 without flat directions.
    void reverse_step(index_t t, const KalmanOperands<T>& gradient) {
        const V two = S::fill(T(2)), half = S::fill(T(0.5));
        if (t + 1 < steps_) {
            if (gradient.A.data) {
                multiply_sparse<Into::set, false>(A, rows_, Pf, X, n, n);
                for (index_t e = 0; e < n * n; ++e) X[e] *= two;
                multiply<Into::add, false>(gP, n, 1, X, gA, n, n, n);
                for (index_t i = 0; i < n; ++i)
                    for (index_t j = 0; j < n; ++j)
                        for (index_t k = 0; k < q; ++k) gA[i * n + j] += gm[i * q + k] * mf[j * q + k];
            }
            for (index_t e = 0; e < n * n; ++e) gQ[e] += gP[e];
            for (index_t i = 0; i < n; ++i) gc[i] += gm[i * q];
            multiply_sparse<Into::set, false>(At, columns_, gP, Xt, n, n);
            transpose_into(Xt, X, n, n);
            multiply_sparse<Into::set, true>(At, columns_, X, gPf, n, n);
            mirror_lower(gPf, n);
            multiply_sparse<Into::set, false>(At, columns_, gm, gmf, n, q);
        } else {
            clear(gPf, n * n);
            clear(gmf, n * q);
        }
        flush(gradient.A, gA, n * n, t, true);
        flush(gradient.Q, gQ, n * n, t, true);
        flush(gradient.c, gc, n, t, true);

        multiply<Into::set, false>(Kt, n, 1, gmf, w, p, n, q);
        multiply<Into::set, false>(u, q, 1, flat_.W, uW, p, q, q);
        for (index_t e = 0; e < p * q; ++e) gv[e] = gs_ * uW[e] + w[e];
        for (index_t i = 0; i < p; ++i) y[i] = gv[i * q];
        add_to(gradient.y, y, p, t);
        for (index_t i = 0; i < p; ++i)
            for (index_t j = 0; j < p; ++j) Sinv[i * p + j] = i == j ? one : V{};
        solve(Sinv, p);
        for (index_t i = 0; i < p; ++i)
            for (index_t j = 0; j <= i; ++j) {
                V sum = gs_ * Sinv[i * p + j];
                for (index_t k = 0; k < q; ++k)
                    sum -= gs_ * uW[i * q + k] * u[j * q + k] + w[i * q + k] * u[j * q + k] + u[i * q + k] * w[j * q + k];
                gS[i * p + j] = gS[j * p + i] = half * sum;
            }

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
        // X = gP+ (I - K B), ug = u gm+', and gP = X + B' (gS B - K' X) + sym(ug' B).
        for (index_t e = 0; e < n * n; ++e) X[e] = gPf[e];
        multiply<Into::subtract, false>(KR, 1, n, seenB, X, n, p, n);
        for (index_t i = 0; i < p; ++i)
            for (index_t k = 0; k < n; ++k) {
                V sum{};
                for (index_t j = 0; j < q; ++j) sum += u[i * q + j] * gmf[k * q + j];
                ug[i * n + k] = sum;
            }
        if (gradient.B.data) {
            multiply<Into::set, false>(gS, p, 1, BP, Z, p, p, n);
            multiply<Into::add, false>(ug, n, 1, P, gB, p, n, n);
            for (index_t i = 0; i < p; ++i)
                for (index_t k = 0; k < n; ++k) {
                    V sum = two * Z[i * n + k];
                    for (index_t j = 0; j < q; ++j) sum -= gv[i * q + j] * m[k * q + j];
                    gB[i * n + k] += sum;
                }
            for (index_t e = 0; e < n * p; ++e) KR[e] *= two;
            multiply<Into::subtract, false>(KR, n, 1, Pf, gB, p, n, n);
            flush(gradient.B, gB, n * p, t, true);
        }

        multiply<Into::set, false>(gS, p, 1, seenB, Z, p, p, n);
        multiply<Into::subtract, false>(Kt, n, 1, X, Z, p, n, n);
        for (index_t e = 0; e < n * n; ++e) gP[e] = X[e];
        multiply<Into::add, true>(seenBt, p, 1, Z, gP, n, p, n);
        for (index_t e = 0; e < n * p; ++e) ug[e] *= half;
        multiply<Into::add, true>(seenBt, p, 1, ug, gP, n, p, n);
        multiply<Into::add, true>(ug, 1, n, seenB, gP, n, p, n);
        mirror_lower(gP, n);
        for (index_t e = 0; e < n * q; ++e) gm[e] = gmf[e];
        multiply<Into::subtract, false>(seenBt, p, 1, gv, gm, n, p, q);
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

    // The data do not determine this direction of the flat prior.
    void note_flat(V determined, index_t direction, KalmanStatus* status) const {
        for (index_t l = 0; l < filled_; ++l) {
            if (status[begin_ + l].code || S::get(determined, l) > T(0)) continue;
            status[begin_ + l] = {direction, static_cast<std::int32_t>(p + 2)};
        }
    }

    const index_t n, p, q;
    const KalmanSizes sizes_;
    const KalmanOperands<const T>& model_;
    const index_t begin_, filled_;
    index_t steps_ = 0, last_[W];
    V one, gs_;
    V *A, *At, *Q, *P, *Pf, *X, *Xt, *gP, *gPf, *gA, *gQ;
    V *B, *seenB, *seenBt, *K, *Kt, *BP, *KR, *gB, *Z, *ug;
    V *R, *seenR, *L, *Sinv, *gS, *gR, *Y;
    V *m, *mf, *gm, *gmf, *next_m, *c, *gc;
    V *v, *u, *w, *gv, *uW, *y, *seen, *pivots, *inverse;
    Pattern rows_, columns_;
    FlatPrior<T, Wide> flat_;
};
