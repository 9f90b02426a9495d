// Spherical harmonics and their derivative for one run of edges; see couplings/harmonics.py for the
// formula. Included by the isa_*.cpp files only.

namespace mace_stream {
namespace ISA {

/// Factors of the harmonics of a run, [.., EDGES].
template <typename T>
struct HarmonicFactors {
  alignas(64) T cosine[MAX_L + 1][EDGES];              /* Re (z + i x)^m */
  alignas(64) T sine[MAX_L + 1][EDGES];                /* Im */
  alignas(64) T legendre[MAX_L + 2][MAX_L + 2][EDGES]; /* [l][m]: d^m P_l(y) / dy^m */
};

template <typename T>
MS_INLINE void set_factors(const EdgeInputs<T>& edges, const EdgeRun& run, HarmonicFactors<T>& f) {
  alignas(64) T x[EDGES], y[EDGES], z[EDGES];
  for (int e = 0; e < EDGES; ++e) {
    const T* dir = edges.dir + 4 * (run.edge + (e < run.count ? e : 0));
    x[e] = dir[0];
    y[e] = dir[1];
    z[e] = dir[2];
    f.cosine[0][e] = T(1);
    f.sine[0][e] = T(0);
    f.legendre[0][0][e] = T(1);
  }
  const int l_max = edges.l_max;
  for (int m = 1; m <= l_max; ++m)
    for (int e = 0; e < EDGES; ++e) {
      f.cosine[m][e] = z[e] * f.cosine[m - 1][e] - x[e] * f.sine[m - 1][e];
      f.sine[m][e] = z[e] * f.sine[m - 1][e] + x[e] * f.cosine[m - 1][e];
    }
  for (int m = 0; m <= l_max; ++m)
    for (int l = m; l <= l_max; ++l)
      for (int e = 0; e < EDGES; ++e) {
        if (l == m) {
          if (m > 0) f.legendre[m][m][e] = T(2 * m - 1) * f.legendre[m - 1][m - 1][e];
          f.legendre[m][m + 1][e] = T(0);
        } else if (l == m + 1) {
          f.legendre[l][m][e] = T(2 * m + 1) * y[e] * f.legendre[m][m][e];
        } else {
          f.legendre[l][m][e] = (T(2 * l - 1) * y[e] * f.legendre[l - 1][m][e] -
                                 T(l + m - 1) * f.legendre[l - 2][m][e]) *
                                (T(1) / T(l - m));
        }
      }
}

/// attrs [(l_max + 1)^2, EDGES], times `scale`.
template <typename T>
MS_INLINE void harmonics(const EdgeInputs<T>& edges, const EdgeRun& run, T scale, T* attrs) {
  HarmonicFactors<T> f;
  set_factors(edges, run, f);
  for (int l = 0; l <= edges.l_max; ++l)
    for (int m = -l; m <= l; ++m) {
      const int order = m < 0 ? -m : m, row = l * l + l + m;
      const T* angular = m < 0 ? f.sine[order] : f.cosine[order];
      const T factor = T(edges.harmonic_norms[row]) * scale;
      for (int e = 0; e < EDGES; ++e)
        attrs[row * EDGES + e] = factor * f.legendre[l][order][e] * angular[e];
    }
}

/// G = sum_m attrs_bar_m dY_m/dn [3, EDGES], with Y as polynomials of x, y, z; attrs_bar_of_edge is
/// [EDGES, ATTRS_STRIDE].
template <typename T>
MS_INLINE void harmonics_vjp(const EdgeInputs<T>& edges, const EdgeRun& run,
                             const T* attrs_bar_of_edge, T (&g)[3][EDGES]) {
  HarmonicFactors<T> f;
  set_factors(edges, run, f);
  alignas(64) T attrs_bar[MAX_HARMONICS * EDGES];
  for (int row = 0; row < (edges.l_max + 1) * (edges.l_max + 1); ++row)
    for (int e = 0; e < EDGES; ++e)
      attrs_bar[row * EDGES + e] = attrs_bar_of_edge[e * ATTRS_STRIDE + row];
  for (int axis = 0; axis < 3; ++axis)
    for (int e = 0; e < EDGES; ++e) g[axis][e] = T(0);
  for (int l = 1; l <= edges.l_max; ++l)
    for (int m = -l; m <= l; ++m) {
      const int order = m < 0 ? -m : m, row = l * l + l + m;
      const T* angular = m < 0 ? f.sine[order] : f.cosine[order];
      const T norm = T(edges.harmonic_norms[row]);
      for (int e = 0; e < EDGES; ++e)
        g[1][e] += norm * attrs_bar[row * EDGES + e] * f.legendre[l][order + 1][e] * angular[e];
      if (m == 0) continue;
      const T* by_z = m < 0 ? f.sine[order - 1] : f.cosine[order - 1];
      const T* by_x = m < 0 ? f.cosine[order - 1] : f.sine[order - 1];
      const T sign = m < 0 ? T(1) : T(-1);
      for (int e = 0; e < EDGES; ++e) {
        const T common = norm * T(order) * attrs_bar[row * EDGES + e] * f.legendre[l][order][e];
        g[2][e] += common * by_z[e];
        g[0][e] += sign * common * by_x[e];
      }
    }
}

/// edges.grad += radial * n + (G - n (n . G)) / r; radial [EDGES] is by place between knots.
template <typename T>
MS_INLINE void add_edge_gradients(const EdgeInputs<T>& edges, const EdgeRun& run,
                                  const T* attrs_bar, const T* radial) {
  alignas(64) T g[3][EDGES];
  harmonics_vjp(edges, run, attrs_bar, g);
  for (int e = 0; e < run.count; ++e) {
    const T* n = edges.dir + 4 * (run.edge + e);
    T* grad = edges.grad + 3 * (run.edge + e);
    const T along = n[0] * g[0][e] + n[1] * g[1][e] + n[2] * g[2][e];
    const T slope = radial[e] * T(edges.inverse_step) - along * n[3];
    for (int axis = 0; axis < 3; ++axis) grad[axis] += slope * n[axis] + g[axis][e] * n[3];
  }
}

template <typename T>
MS_INLINE T norm_of(const EdgeInputs<T>& edges, const EdgeRun& run) {
  return edges.norm ? edges.norm[run.receiver] : T(1);
}

}  // namespace ISA
}  // namespace mace_stream
