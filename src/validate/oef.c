/* Overlap effectiveness on H100 (the matrix the DHelix paper refers to), by class of operators. The
 * mean of a class's cells is compared with the number that a cluster file takes from the paper's
 * figure 4. */
#include <string.h>

#include "dhelix/cluster.h"
#include "validate/table.h"

enum { N_CLASSES = 4 };

static const dh_cluster_class forward_classes[N_CLASSES] = {DH_CLUSTER_GEMM, DH_CLUSTER_ATTENTION,
                                                            DH_CLUSTER_LOCAL, DH_CLUSTER_CROSS};
static const dh_cluster_class backward_classes[N_CLASSES] = {
    DH_CLUSTER_GEMM, DH_CLUSTER_ATTENTION_GRAD, DH_CLUSTER_LOCAL, DH_CLUSTER_CROSS};

/* Place among the four classes by the matrix's name of an operator. */
static int class_of(const char *name)
{
    if (strncmp(name, "intra_", 6) == 0) return 2;
    if (strncmp(name, "inter_", 6) == 0) return 3;
    return strncmp(name, "fa", 2) == 0;
}

static dh_status add_up(dh_ctx *ctx, const dh_published *t, double sums[N_CLASSES][N_CLASSES],
                        double counts[N_CLASSES][N_CLASSES])
{
    for (size_t i = 0; i < t->n_rows; i++) {
        const char *row;
        DH_TRY(dh_published_text(ctx, t, i, "row_op", &row));
        for (size_t c = 1; c < t->n_columns; c++) {
            double oef;
            DH_TRY(dh_published_real(ctx, t, i, t->columns[c], &oef));
            sums[class_of(row)][class_of(t->columns[c])] += oef;
            counts[class_of(row)][class_of(t->columns[c])] += 1;
        }
    }
    return DH_OK;
}

dh_status dh_validate_oef(dh_ctx *ctx, dh_validation *v)
{
    dh_published t;
    dh_cluster *h100;
    double sums[N_CLASSES][N_CLASSES] = {{0}}, counts[N_CLASSES][N_CLASSES] = {{0}};
    DH_TRY(dh_published_read(ctx, v->arena, v->table->file, &t));
    DH_TRY(add_up(ctx, &t, sums, counts));
    DH_TRY(dh_validation_cluster(ctx, v, "h100", &h100));
    dh_status st = DH_OK;
    for (int f = 0; f < N_CLASSES && st == DH_OK; f++)
        for (int b = 0; b < N_CLASSES && st == DH_OK; b++) {
            const dh_cluster_class x = forward_classes[f], y = backward_classes[b];
            st = dh_validation_add(ctx, v, dh_cluster_oef(h100, x, y), sums[f][b] / counts[f][b],
                                   "%s beside %s, mean of %g", dh_cluster_class_name(x),
                                   dh_cluster_class_name(y), counts[f][b]);
        }
    dh_cluster_destroy(h100);
    return st;
}
