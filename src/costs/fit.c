#include "costs/fit.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { N = DH_FIT_MAX_CONSTANTS };

/* TUNING: differences over 1 % of a constant are above what rounding to nanoseconds moves, and
 * below what a kink of the cost model is wide. */
#define DIFFERENCE 0.01
/* A step that improves the sum of squares by less is the last one. */
#define ENOUGH 1e-6

typedef struct fit {
    const dh_fit_problem *p;
    double x[N], square; /* the best so far, and its sum of squares */
    double *r;           /* [n_residuals] there */
    double *other;       /* [n_residuals] */
    double *slope;       /* [n_constants][n_residuals] */
    double jtj[N][N], jtr[N];
} fit;

static dh_status predict(dh_ctx *ctx, const fit *f, const double *x, double *r, double *square)
{
    DH_TRY(f->p->predict(ctx, f->p->self, x, r));
    *square = 0;
    for (size_t i = 0; i < f->p->n_residuals; i++) *square += r[i] * r[i];
    return DH_OK;
}

/* Away from the nearer bound. */
static double difference_of(const fit *f, size_t k)
{
    const double range = f->p->max[k] - f->p->min[k];
    const double h = DIFFERENCE * DH_MAX(fabs(f->x[k]), DIFFERENCE * range);
    return f->x[k] + h > f->p->max[k] ? -h : h;
}

static dh_status find_slopes(dh_ctx *ctx, fit *f)
{
    const size_t n = f->p->n_residuals, n_x = f->p->n_constants;
    for (size_t k = 0; k < n_x; k++) {
        double x[N], square;
        memcpy(x, f->x, sizeof x);
        x[k] += difference_of(f, k);
        DH_TRY(predict(ctx, f, x, f->other, &square));
        for (size_t i = 0; i < n; i++)
            f->slope[k * n + i] = (f->other[i] - f->r[i]) / (x[k] - f->x[k]);
    }
    for (size_t a = 0; a < n_x; a++) {
        f->jtr[a] = 0;
        for (size_t i = 0; i < n; i++) f->jtr[a] += f->slope[a * n + i] * f->r[i];
        for (size_t b = 0; b < n_x; b++) {
            f->jtj[a][b] = 0;
            for (size_t i = 0; i < n; i++)
                f->jtj[a][b] += f->slope[a * n + i] * f->slope[b * n + i];
        }
    }
    return DH_OK;
}

/* Solve a x = b by elimination with row pivots; a and b are used up. A constant on which nothing
 * depends stays where it is. */
static void solve(size_t n, double a[N][N], double b[N], double x[N])
{
    for (size_t k = 0; k < n; k++) {
        size_t pivot = k;
        for (size_t i = k + 1; i < n; i++)
            if (fabs(a[i][k]) > fabs(a[pivot][k])) pivot = i;
        for (size_t j = 0; j < n && pivot != k; j++) {
            const double t = a[k][j];
            a[k][j] = a[pivot][j];
            a[pivot][j] = t;
        }
        const double t = b[k];
        b[k] = b[pivot];
        b[pivot] = t;
        for (size_t i = k + 1; i < n && a[k][k] != 0; i++) {
            const double factor = a[i][k] / a[k][k];
            for (size_t j = k; j < n; j++) a[i][j] -= factor * a[k][j];
            b[i] -= factor * b[k];
        }
    }
    for (size_t k = n; k-- > 0;) {
        x[k] = b[k];
        for (size_t j = k + 1; j < n; j++) x[k] -= a[k][j] * x[j];
        x[k] = a[k][k] != 0 ? x[k] / a[k][k] : 0;
    }
}

/* The damped step of the constants that are free; those at `to` go there whatever the others do. */
static void damped_step(const fit *f, double damping, const bool *fixed, const double *to,
                        double d[N])
{
    const size_t n = f->p->n_constants;
    double a[N][N], b[N];
    memcpy(a, f->jtj, sizeof a);
    for (size_t k = 0; k < n; k++) {
        a[k][k] *= 1 + damping;
        b[k] = -f->jtr[k];
        if (!fixed[k]) continue;
        memset(a[k], 0, sizeof a[k]);
        a[k][k] = 1;
        b[k] = to[k] - f->x[k];
    }
    solve(n, a, b, d);
}

/* Where the step leads. Constants that it would take outside stop at their bound, and the others
 * step as if they had to. */
static void step_from(const fit *f, double damping, double x[N])
{
    const size_t n = f->p->n_constants;
    bool fixed[N] = {false}, inside = false;
    while (!inside) {
        double d[N] = {0};
        inside = true;
        damped_step(f, damping, fixed, x, d);
        for (size_t k = 0; k < n; k++) {
            if (fixed[k]) continue;
            x[k] = DH_MIN(DH_MAX(f->x[k] + d[k], f->p->min[k]), f->p->max[k]);
            fixed[k] = x[k] != f->x[k] + d[k];
            inside &= !fixed[k];
        }
    }
}

/* Tries steps, ever shorter ones, until one is better. *gain: share of the sum of squares that it
 * took away; 0: none was. */
static dh_status improve(dh_ctx *ctx, fit *f, double *damping, double *gain)
{
    enum { TRIES = 8 };
    *gain = 0;
    for (int i = 0; i < TRIES; i++) {
        double x[N] = {0}, square;
        step_from(f, *damping, x);
        DH_TRY(predict(ctx, f, x, f->other, &square));
        if (square < f->square) {
            double *r = f->r;
            *gain = 1 - square / f->square;
            memcpy(f->x, x, f->p->n_constants * sizeof *x);
            f->square = square;
            f->r = f->other;
            f->other = r;
            *damping /= 10;
            return DH_OK;
        }
        *damping *= 10;
    }
    return DH_OK;
}

static dh_status run(dh_ctx *ctx, fit *f)
{
    const int steps = f->p->max_steps > 0 ? f->p->max_steps : 20;
    double damping = 1e-3, gain = 1;
    DH_TRY(predict(ctx, f, f->x, f->r, &f->square));
    for (int i = 0; i < steps && gain > ENOUGH && f->square > 0; i++) {
        DH_TRY(find_slopes(ctx, f));
        DH_TRY(improve(ctx, f, &damping, &gain));
    }
    return DH_OK;
}

dh_status dh_fit(dh_ctx *ctx, const dh_fit_problem *p, double *constants, double *rms)
{
    fit f = {.p = p};
    if (p->n_constants > N)
        return dh_fail(ctx, DH_EINVAL, "%zu constants to fit; %d at most", p->n_constants, N);
    for (size_t k = 0; k < p->n_constants; k++) {
        if (!(constants[k] >= p->min[k] && constants[k] <= p->max[k]))
            return dh_fail(ctx, DH_EINVAL, "constant %zu begins at %g, outside %g to %g", k,
                           constants[k], p->min[k], p->max[k]);
        f.x[k] = constants[k];
    }
    f.r = calloc(p->n_residuals + 1, sizeof *f.r);
    f.other = calloc(p->n_residuals + 1, sizeof *f.other);
    f.slope = calloc(p->n_constants * p->n_residuals + 1, sizeof *f.slope);
    dh_status st = f.r && f.other && f.slope ? run(ctx, &f) : dh_no_memory(ctx);
    if (st == DH_OK) {
        memcpy(constants, f.x, p->n_constants * sizeof *constants);
        *rms = p->n_residuals ? sqrt(f.square / (double)p->n_residuals) : 0;
    }
    free(f.r);
    free(f.other);
    free(f.slope);
    return st;
}
