/* STREAM's copy and triad (McCalpin), and a read, in threads: the reference for `draftmeter probe`.
   gcc -O3 -march=native -fopenmp stream_triad.c -o stream_triad; ./stream_triad ELEMENTS REPEATS */
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

/* Large pages, as numpy asks for: without them the page tables are measured too. */
static double *array(long n) {
  long size = (n * (long)sizeof(double) + (1 << 21) - 1) >> 21 << 21;
  double *p = aligned_alloc(1 << 21, size);
  if (p) madvise(p, size, MADV_HUGEPAGE);
  return p;
}

static int by_value(const void *x, const void *y) {
  double a = *(const double *)x, b = *(const double *)y;
  return (a > b) - (a < b);
}

int main(int argc, char **argv) {
  if (argc != 3) return 2;
  long n = atol(argv[1]);
  int repeats = atoi(argv[2]);
  if (n < 1 || repeats < 1) return 2;
  double *a = array(n), *b = array(n), *c = array(n);
  double *read = malloc(repeats * sizeof *read), *copy = malloc(repeats * sizeof *copy);
  double *triad = malloc(repeats * sizeof *triad), sum = 0;
  if (!a || !b || !c || !read || !copy || !triad) return 1;
#pragma omp parallel for schedule(static)
  for (long i = 0; i < n; i++) a[i] = 1.0, b[i] = 2.0, c[i] = 0.5;
  for (int r = -2; r < repeats; r++) {
    double t0 = omp_get_wtime(), s = 0;
#pragma omp parallel for simd schedule(static) reduction(+ : s)
    for (long i = 0; i < n; i++) s += b[i];
    sum += s;
    double t1 = omp_get_wtime();
#pragma omp parallel for schedule(static)
    for (long i = 0; i < n; i++) a[i] = b[i];
    double t2 = omp_get_wtime();
#pragma omp parallel for simd schedule(static)
    for (long i = 0; i < n; i++) a[i] = b[i] + 3.0 * c[i];
    double t3 = omp_get_wtime();
    if (r >= 0) read[r] = t1 - t0, copy[r] = t2 - t1, triad[r] = t3 - t2;
  }
  qsort(read, repeats, sizeof *read, by_value);
  qsort(copy, repeats, sizeof *copy, by_value);
  qsort(triad, repeats, sizeof *triad, by_value);
  int m = repeats / 2;
  printf("{\"read_gb_s\": %.3f, \"copy_gb_s\": %.3f, \"triad_gb_s\": %.3f, \"check\": %g}\n",
         8e-9 * n / read[m], 16e-9 * n / copy[m], 24e-9 * n / triad[m], sum + a[n / 2]);
  return 0;
}
