/* Profiles of ours: what operators took alone.
 *
 * A key (costs/classes.c) has the shapes of an operator's operands. After "; " follow the group of
 * a collective, or the sizes of heads. Operators in fp8, with windows or in parts are left out:
 * shapes do not describe them. A paced link says nothing about the machine. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "calibrate/measured.h"

enum { MAX_AXES = 3 };

typedef struct shape {
    dh_dtype dtype;
    int n;
    int64_t at[MAX_AXES];
} shape;

/* Shape of the operand of this name; false: there is none in float32 or a half type. */
static bool shape_of(const char *key, const char *name, shape *s)
{
    char text[24], dtype[16];
    snprintf(text, sizeof text, " %s=", name);
    const char *at = strstr(key, text), *end = strstr(key, "; ");
    if (!at || (end && at > end)) return false;
    at += strlen(text);
    const size_t n = strcspn(at, "[");
    if (n >= sizeof dtype || at[n] != '[') return false;
    snprintf(dtype, sizeof dtype, "%.*s", (int)n, at);
    if (!measured_dtype(dtype, &s->dtype)) return false;
    at += n;
    for (s->n = 0; s->n < MAX_AXES && (*at == '[' || *at == ','); s->n++) {
        char *stop;
        s->at[s->n] = strtoll(at + 1, &stop, 10);
        if (stop == at + 1 || s->at[s->n] <= 0) return false;
        at = stop;
    }
    return *at == ']';
}

static bool is_matrix(const char *key, const char *name, shape *s)
{
    return shape_of(key, name, s) && s->n == 2;
}

/* Behind "; ": what a text like "D=" or ", on " stands before; 0: it is not there. */
static int64_t number_behind(const char *key, const char *text)
{
    const char *end = strstr(key, "; "), *at = end ? strstr(end, text) : NULL;
    return at ? strtoll(at + strlen(text), NULL, 10) : 0;
}

static bool is_plain(const char *key)
{
    static const char *const words[] = {" fp8", " window=", " capped", " parts"};
    for (size_t i = 0; i < DH_COUNTOF(words); i++)
        if (strstr(key, words[i])) return false;
    return true;
}

/* ---- computation ---------------------------------------------------------------------------- */

/* Of x [m, k] and w [n, k], or their gradients; `summed` is the axis that both have. */
static bool read_product(dh_op_type type, const char *key, dh_measured_kernel *k)
{
    const bool forward = type == DH_OP_LINEAR, wgrad = type == DH_OP_LINEAR_WGRAD;
    shape a, b;
    if (!is_matrix(key, forward ? "x" : "dy", &a) || !is_matrix(key, wgrad ? "x" : "w", &b))
        return false;
    k->kind = DH_KERNEL_GEMM;
    k->dtype = a.dtype;
    k->size[0] = wgrad ? a.at[1] : a.at[0];
    k->size[1] = forward ? b.at[0] : b.at[1];
    k->size[2] = wgrad ? a.at[0] : a.at[1];
    k->size[3] = 1;
    return true;
}

static bool read_attention(dh_op_type type, const char *key, dh_measured_kernel *k)
{
    shape packed, lse;
    const int64_t dim = number_behind(key, " D=");
    if (!is_matrix(key, "qkv", &packed) || !shape_of(key, "lse", &lse) || lse.n != 3 || dim <= 0)
        return false;
    k->kind = type == DH_OP_ATTN ? DH_KERNEL_ATTN : DH_KERNEL_ATTN_GRAD;
    k->dtype = packed.dtype;
    k->size[0] = lse.at[0];
    k->size[1] = lse.at[1];
    k->size[2] = (packed.at[1] / dim - lse.at[1]) / 2;
    k->size[3] = lse.at[2];
    k->size[4] = dim;
    return k->size[2] > 0;
}

static bool read_norm(const char *key, dh_measured_kernel *k)
{
    shape x;
    if (!is_matrix(key, "x", &x)) return false;
    k->kind = DH_KERNEL_NORM;
    k->dtype = x.dtype;
    k->size[0] = x.at[0];
    k->size[1] = x.at[1];
    return true;
}

static bool read_kernel(dh_op_type type, const char *key, dh_measured_kernel *k)
{
    switch (type) {
    case DH_OP_LINEAR:
    case DH_OP_LINEAR_DGRAD:
    case DH_OP_LINEAR_WGRAD:
        return read_product(type, key, k);
    case DH_OP_ATTN:
    case DH_OP_ATTN_GRAD:
        return read_attention(type, key, k);
    case DH_OP_NORM:
        return read_norm(key, k);
    default:
        return false;
    }
}

/* ---- collectives ---------------------------------------------------------------------------- */

static double bytes_of(const char *key, const char *name)
{
    shape s;
    if (!shape_of(key, name, &s)) return 0;
    double n = (double)dh_dtype_bytes(s.dtype);
    for (int i = 0; i < s.n; i++) n *= (double)s.at[i];
    return n;
}

static bool is_paced(const dh_profile *p, const dh_profile_op *op)
{
    const char *wire =
        dh_stream_engine(op->stream) == DH_ENGINE_LOCAL ? "links.local" : "links.cross";
    for (size_t i = 0; i < p->facts.n; i++)
        if (strcmp(p->facts.at[i].name, wire) == 0)
            return strncmp(p->facts.at[i].value, "paced", 5) == 0;
    return false;
}

/* All groups of a kind did the same at that time. */
static dh_status add_call(const measured_file *file, const dh_profile_op *op, dh_op_type type)
{
    const bool local = strstr(op->key, ", local") != NULL;
    const int64_t ranks = number_behind(op->key, " of ");
    const int64_t nodes = local ? 1 : number_behind(op->key, ", on ");
    const double bytes = DH_MAX(bytes_of(op->key, "x"), bytes_of(op->key, "y"));
    if (bytes <= 0 || ranks < 2 || nodes < 1 || ranks % nodes != 0) return DH_OK;
    return measured_add_collective(file, 0, type, ranks, nodes, bytes, (double)op->solo_ns);
}

static bool is_modelled_call(dh_op_type type)
{
    return type == DH_OP_ALL_REDUCE || type == DH_OP_ALL_GATHER || type == DH_OP_REDUCE_SCATTER ||
           type == DH_OP_ALL_TO_ALL || type == DH_OP_RING_EXCHANGE;
}

/* ---- entry ---------------------------------------------------------------------------------- */

static dh_status add_solo(const measured_file *file, const dh_profile *p, const dh_profile_op *op)
{
    const dh_op_type type = measured_op_type(op);
    dh_measured_kernel k = {.ns = (double)op->solo_ns, .n_samples = op->n_samples};
    if (op->source != DH_PAIR_MEASURED || !is_plain(op->key)) return DH_OK;
    if (read_kernel(type, op->key, &k)) return measured_add_kernel(file, &k);
    return is_modelled_call(type) && !is_paced(p, op) ? add_call(file, op, type) : DH_OK;
}

dh_status measured_add_solos(const measured_file *file, const dh_profile *p)
{
    for (size_t i = 0; i < p->ops.n; i++) DH_TRY(add_solo(file, p, &p->ops.at[i]));
    return DH_OK;
}
