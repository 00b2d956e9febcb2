/* SPDX-License-Identifier: MIT */
/* In place of OpenBLAS in what gpu_suite.sh packs: the two functions that the library calls, as
 * loops. Nothing that the suite runs depends on their speed. */
#include <stddef.h>

enum { NO_TRANSPOSE = 111 };

static float at(const float *matrix, int transposed, int stride, int row, int column)
{
    return matrix[transposed ? (size_t)column * (size_t)stride + (size_t)row
                             : (size_t)row * (size_t)stride + (size_t)column];
}

/* By rows alone: c (m x n) = alpha * op(a) (m x k) * op(b) (k x n) + beta * c. */
void cblas_sgemm(int order, int transpose_a, int transpose_b, int m, int n, int k, float alpha,
                 const float *a, int lda, const float *b, int ldb, float beta, float *c, int ldc);
/* By rows alone: c (n x n) = alpha * op(a) (n x k) * its transpose + beta * c, whichever triangle.
 */
void cblas_ssyrk(int order, int triangle, int transpose, int n, int k, float alpha, const float *a,
                 int lda, float beta, float *c, int ldc);

void cblas_sgemm(int order, int transpose_a, int transpose_b, int m, int n, int k, float alpha,
                 const float *a, int lda, const float *b, int ldb, float beta, float *c, int ldc)
{
    (void)order;
    for (int i = 0; i < m; i++) {
        for (int j = 0; j < n; j++) {
            float sum = 0.0f;
            for (int l = 0; l < k; l++) {
                sum += at(a, transpose_a != NO_TRANSPOSE, lda, i, l) *
                       at(b, transpose_b != NO_TRANSPOSE, ldb, l, j);
            }
            float *out = &c[(size_t)i * (size_t)ldc + (size_t)j];
            *out = alpha * sum + (beta == 0.0f ? 0.0f : beta * *out);
        }
    }
}

void cblas_ssyrk(int order, int triangle, int transpose, int n, int k, float alpha, const float *a,
                 int lda, float beta, float *c, int ldc)
{
    (void)triangle;
    int transposed = transpose != NO_TRANSPOSE;
    cblas_sgemm(order, transposed ? 112 : NO_TRANSPOSE, transposed ? NO_TRANSPOSE : 112, n, n, k,
                alpha, a, lda, a, lda, beta, c, ldc);
}
