/* The tables, and running one. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/embedded.h"
#include "costs/cluster_table.h"
#include "validate/table.h"

extern const dh_embedded dh_shipped_clusters[];
extern const size_t dh_shipped_clusters_n;

static const char *const measure_names[] = {
#define X(id, name, doc) name,
    DH_VALIDATION_MEASURE_LIST(X)
#undef X
};

const char *dh_validation_measure_name(dh_validation_measure measure)
{
    return measure_names[measure];
}

static const dh_validation_table tables[] = {
    {.name = "zero-bubble",
     .file = "zero_bubble_bubble_rates",
     .doc = "bubble rates of 1F1B and interleaved 1F1B",
     .how = "jobs zero-bubble-times-*, with the stage times of the same row instead of a model; "
            "(cost - m "
            "(F + B + W)) / cost",
     .unit = "",
     .measure = DH_VALIDATION_ABSOLUTE,
     .aim = 0.005,
     .run = dh_validate_zero_bubble},
    {.name = "zero-bubble-split",
     .file = "zero_bubble_bubble_rates",
     .doc = "bubble rates of ZB-H1, ZB-H2 and the automatic schedules",
     .how = "as zero-bubble; ZB-1p and ZB-2p are zb-auto with p and 2p activations, of which table "
            "1's "
            "share waits for W",
     .unit = "",
     .measure = DH_VALIDATION_ABSOLUTE,
     .aim = 0.005,
     .run = dh_validate_zero_bubble_split},
    {.name = "zero-bubble-throughput",
     .file = "zero_bubble_table4_throughput_memory",
     .doc =
         "sequences a second and device of 1F1B, interleaved 1F1B, ZB-1p and ZB-2p, 1.5B to 28.3B "
         "on A100",
     .how =
         "jobs zero-bubble-*, system megatron-2022, simulated on cluster a100; ZB-1p and ZB-2p are "
         "zb-auto with p and 2p activations, whose steps overlap (trait overlapping-steps): by the "
         "longest stage's span; no constant rests on this table",
     .unit = "1/s",
     .measure = DH_VALIDATION_RELATIVE,
     .aim = 6,
     .run = dh_validate_zero_bubble_jobs},
    {.name = "zero-bubble-memory",
     .file = "zero_bubble_table4_throughput_memory",
     .doc = "most memory of a device in the same jobs",
     .how = "the same simulations: memory as system megatron-2022 would need it, of the stage that "
            "needs most",
     .unit = "GiB",
     .measure = DH_VALIDATION_RELATIVE,
     .aim = 6,
     .run = dh_validate_zero_bubble_memory},
    {.name = "megascale",
     .file = "megascale_table2_175B_strong_scaling",
     .doc = "iteration times of Megatron-LM, 175B on 256 to 12,288 A100",
     .how =
         "job megascale-175b, system megatron-2022, simulated on cluster a100; no constant rests "
         "on this table",
     .unit = "s",
     .measure = DH_VALIDATION_RELATIVE,
     .aim = 5,
     .run = dh_validate_megascale},
    {.name = "vtrain-node",
     .file = "vtrain_single",
     .doc = "iteration times of Megatron-DeepSpeed, small models on 2 to 8 A100 of one node",
     .how = "job vtrain, system deepspeed, simulated on cluster selene; the host's time for a "
            "kernel and the autograd engine's share of it rest on the rows of 12 and 20 layers",
     .unit = "ms",
     .measure = DH_VALIDATION_RELATIVE,
     .aim = 12,
     .fitted = " 12 layers,| 20 layers,",
     .run = dh_validate_vtrain_node},
    {.name = "vtrain",
     .file = "vtrain_multi",
     .doc = "the same, 3.6B on 64 and 39.1B on 512 A100",
     .how = "job vtrain, system deepspeed, simulated on cluster "
            "validation/clusters/a100-4hdr.yaml; no constant rests on this table",
     .unit = "ms",
     .measure = DH_VALIDATION_RELATIVE,
     .run = dh_validate_vtrain},
    {.name = "moe-folding",
     .file = "moe_folding_h100",
     .doc = "TFLOP/s a device of four models with experts on 64 to 256 H100, the best mesh of five "
            "methods (MoE Parallel Folding)",
     .how = "jobs folding-*, system megatron-moe-2024, simulated on cluster h100; what a small "
            "kernel takes rests on the rows of Mixtral 8x22B and Qwen 2",
     .unit = "TFLOP/s",
     .measure = DH_VALIDATION_RELATIVE,
     .aim = 10,
     .fitted = "Mixtral-8x22B,|Qwen2-57B-A14B,",
     .run = dh_validate_moe_folding},
    {.name = "moe-zoo",
     .file = "moe_zoo_h100",
     .doc = "TFLOP/s a device of Qwen 3 235B on 256 H100, five meshes (Megatron-MoE-ModelZoo)",
     .how = "job zoo-qwen3-235b, system megatron-moe, simulated on cluster h100; the host's time "
            "rests on row tp4 ep8",
     .unit = "TFLOP/s",
     .measure = DH_VALIDATION_RELATIVE,
     .fitted = "tp4 ep8",
     .run = dh_validate_moe_zoo},
    {.name = "torchtitan",
     .file = "torchtitan_llama3_h100",
     .doc =
         "tokens a second and device of Llama 3 8B, 70B and 405B, bf16 and float8, 8 to 512 H100 "
         "of 500 W and H200",
     .how = "jobs torchtitan-*, system torchtitan, simulated on clusters h100-500w and h200; "
            "asyncTP is strategy intra-batch, float8 train.fp8 hybrid; constants rest on the rows "
            "in bf16 alone, and trait torch-rings on those of 8B with CP",
     .unit = "1/s",
     .measure = DH_VALIDATION_RELATIVE,
     .aim = 10,
     .rests = {"gemm.efficiency"},
     .rests_cluster = "h100-500w",
     .fitted = ", bf16|8B FSDP4 CP2|8B FSDP2 CP4|8B FSDP1 CP8",
     .run = dh_validate_torchtitan},
    {.name = "torchtitan-fsdp",
     .file = "torchtitan_fsdp2",
     .doc = "the same under FSDP, Llama 2 and 3 of 8B to 70B on 64 A100, 405B on 128 H100",
     .how = "jobs torchtitan-*, system torchtitan, simulated on clusters a100 and h100-500w; no "
            "constant rests on this table",
     .unit = "1/s",
     .measure = DH_VALIDATION_RELATIVE,
     .aim = 8,
     .run = dh_validate_torchtitan},
    {.name = "mpt",
     .file = "llm_foundry_mpt_a100",
     .doc = "tokens a second and device of MPT 125M to 70B with FSDP, 2K to 32K tokens, A100",
     .how = "jobs mpt-*, system composer, simulated on cluster a100; no constant rests on this "
            "table",
     .unit = "1/s",
     .measure = DH_VALIDATION_RELATIVE,
     .aim = 8,
     .run = dh_validate_mpt},
    {.name = "mpt-h100",
     .file = "llm_foundry_mpt_h100",
     .doc = "the same on H100, bf16 and fp8, 8 to 512 devices",
     .how = "jobs mpt-*, system composer, simulated on cluster h100; no constant rests on this "
            "table",
     .unit = "1/s",
     .measure = DH_VALIDATION_RELATIVE,
     .aim = 8,
     .run = dh_validate_mpt_h100},
    {.name = "nemo-recipes",
     .file = "nemo_recipes_h100",
     .doc = "iteration times of NeMo's recipes, 8B to 405B, bf16 and fp8, 8 to 2,304 H100",
     .how = "jobs nemo-*, system nemo+second-flash, simulated on cluster h100; no constant rests "
            "on this table",
     .unit = "s",
     .measure = DH_VALIDATION_RELATIVE,
     .aim = 8,
     .run = dh_validate_nemo},
    {.name = "nemo",
     .file = "nemo_h100",
     .doc = "tokens a second and device of NeMo 24.07 and Megatron-Bridge 25.09 to 26.02, 5B to "
            "405B, fp8, 8 to 1,024 H100",
     .how = "jobs nemo-*, systems nemo+second-flash (24.07) and nemo, simulated on cluster h100; "
            "no constant rests on this table",
     .unit = "1/s",
     .measure = DH_VALIDATION_RELATIVE,
     .aim = 8,
     .run = dh_validate_nemo},
    {.name = "nemo-long",
     .file = "nemo_long_h100",
     .doc = "tokens a second and device of Llama 2 7B, 4K to 1M tokens, context parallelism up to "
            "32, fp8, 4 to 1,024 H100",
     .how = "job nemo-llama2-7b, system nemo+second-flash, which is inferred from the row of 1M "
            "tokens, simulated on cluster h100; no constant rests on this table",
     .unit = "1/s",
     .measure = DH_VALIDATION_RELATIVE,
     .aim = 8,
     .run = dh_validate_nemo},
    {.name = "held-out",
     .file = "held_out",
     .doc = "iterations of MT-NLG 530B (A100), Nemotron-4 15B and Llama 3.1 405B (H100), 768 to "
            "16,384 devices",
     .how =
         "jobs mt-nlg-530b, nemotron-4-15b and llama3.1-405b, simulated on clusters selene and "
         "h100; TFLOP/s: 6 a parameter and token and causal attention; no constant rests on this "
         "table",
     .unit = "",
     .measure = DH_VALIDATION_RELATIVE,
     .run = dh_validate_held_out},
    {.name = "korthikanti-iteration",
     .file = "korthikanti22_table3_table5_iter_time",
     .doc = "iteration times of 22B to 1T models on Selene (A100)",
     .how = "jobs korthikanti-*, system megatron-2022, simulated on cluster selene",
     .unit = "s",
     .measure = DH_VALIDATION_RELATIVE,
     .aim = 4,
     .rests = {"gemm.efficiency", "gemm.tile_half", "gemm.start_k"},
     .rests_cluster = "a100",
     .fitted = "*",
     .run = dh_validate_korthikanti},
    {.name = "korthikanti-utilisation",
     .file = "korthikanti22_table3_table5_iter_time",
     .doc = "MFU and HFU of the same jobs",
     .how =
         "model FLOPs without, hardware FLOPs with recomputed attention, over the predicted time "
         "and 312 TFLOP/s a device",
     .unit = "%",
     .measure = DH_VALIDATION_POINTS,
     .fitted = "*",
     .run = dh_validate_korthikanti_utilisation},
    {.name = "korthikanti-layer",
     .file = "korthikanti22_table4_layer_time_22B",
     .doc = "times of a layer of the 22B model, five ways to keep or recompute",
     .how = "job korthikanti-22b with three layers, simulated on cluster selene: from the middle "
            "one's beginning to its end",
     .unit = "ms",
     .measure = DH_VALIDATION_RELATIVE,
     .aim = 7,
     .rests = {"gemm.efficiency", "device.memory_efficiency"},
     .rests_cluster = "a100",
     .fitted = "*",
     .run = dh_validate_korthikanti_layer},
    {.name = "korthikanti-scaling",
     .file = "korthikanti22_text_dp_scaling",
     .doc = "530B model on 280 and 2240 devices",
     .how = "as korthikanti-iteration",
     .unit = "s",
     .measure = DH_VALIDATION_RELATIVE,
     .run = dh_validate_korthikanti_scaling},
    {.name = "korthikanti-memory",
     .file = "korthikanti22_fig1_memory_gib",
     .doc = "parameters, optimizer, gradients and activations of the first stage",
     .how = "jobs korthikanti-*, simulated on cluster selene: states of layers, and what their "
            "forwards keep as system megatron-2022 has it, on the first stage",
     .unit = "GiB",
     .measure = DH_VALIDATION_RELATIVE,
     .aim = 3,
     .run = dh_validate_memory},
    {.name = "korthikanti-activations",
     .file = "korthikanti22_fig7_act_relative_pct",
     .doc = "activations of a layer in percent of those of tensor parallelism alone",
     .how = "the same jobs with two layers on one stage",
     .unit = "%",
     .measure = DH_VALIDATION_RELATIVE,
     .aim = 3,
     .run = dh_validate_memory_shares},
    {.name = "megatron-sc21",
     .file = "megatron_sc21_table1_weak_scaling",
     .doc = "hardware TFLOP/s a device, 1.7B to 1T, full recomputation, Selene (A100)",
     .how = "jobs sc21-*, system megatron-2021, simulated on cluster selene; "
            "96 B s l h^2 (1 + s/6h + V/16lh) over time and devices",
     .unit = "TFLOP/s",
     .measure = DH_VALIDATION_RELATIVE,
     .aim = 7,
     .run = dh_validate_sc21},
    {.name = "dhelix-shares",
     .form = DH_VALIDATION_STACKS,
     .paper = "dhelix-paper",
     .file = "dhelix_fig3_time_breakdown_a40_digitised",
     .doc = "breakdown of Megatron-LM's time: six dense models, 64 A40",
     .how = "jobs dhelix-*, system megatron-core, simulated on cluster a40, two context-parallel "
            "ranks as in figure 12; the MoE model is left out",
     .unit = "%",
     .measure = DH_VALIDATION_POINTS,
     .aim = 5,
     .rests = {"gemm.efficiency", "local.efficiency", "local.between_gb_per_s"},
     .rests_cluster = "a40",
     .fitted = "*",
     .run = dh_validate_dhelix_shares},
    {.name = "dhelix-throughput",
     .form = DH_VALIDATION_BARS,
     .paper = "dhelix-paper",
     .file = "dhelix_fig11_a40_tflops",
     .figure = "11",
     .doc = "TFLOP/s a device of four systems, six models, 8K tokens, 64 A40",
     .how = "jobs dhelix-*, simulated on cluster a40; model FLOPs without use of causality over "
            "time and devices",
     .unit = "TFLOP/s",
     .measure = DH_VALIDATION_RELATIVE,
     .aim = 6,
     .rests = {"local.transfer_efficiency"},
     .rests_cluster = "a40",
     .fitted = "GPT-6.7B 8K Intra-batch|Llama-8B 8K Intra-batch",
     .run = dh_validate_dhelix_systems},
    {.name = "dhelix-speedups",
     .form = DH_VALIDATION_BARS,
     .paper = "dhelix-paper",
     .file = "dhelix_fig11_a40_tflops",
     .figure = "11",
     .doc = "speed-ups over Megatron-LM of intra-batch, Wavelet+ and DHelix",
     .how = "as dhelix-throughput: systems megatron-core, megascale (strategy intra-batch), "
            "megatron-core (wavelet+), megatron-dhelix (dhelix-paper); aim: also the order of "
            "systems for every model",
     .unit = "%",
     .measure = DH_VALIDATION_POINTS,
     .aim = 5,
     .rests = {"local.transfer_efficiency"},
     .rests_cluster = "a40",
     .fitted = "GPT-6.7B 8K Intra-batch|Llama-8B 8K Intra-batch",
     .run = dh_validate_dhelix_speedups},
    {.name = "dhelix-context",
     .form = DH_VALIDATION_BARS,
     .paper = "dhelix-paper",
     .file = "dhelix_figs12_13a_15_tflops",
     .figure = "12",
     .doc = "TFLOP/s a device of four systems, six models, 16K tokens, two context-parallel ranks, "
            "64 A40",
     .how = "as dhelix-throughput; no constant rests on it",
     .unit = "TFLOP/s",
     .measure = DH_VALIDATION_RELATIVE,
     .aim = 8,
     .run = dh_validate_dhelix_systems},
    {.name = "dhelix-context-speedups",
     .form = DH_VALIDATION_BARS,
     .paper = "dhelix-paper",
     .file = "dhelix_figs12_13a_15_tflops",
     .figure = "12",
     .doc = "speed-ups over Megatron-LM in the same jobs",
     .how = "as dhelix-speedups; no constant rests on it",
     .unit = "%",
     .measure = DH_VALIDATION_POINTS,
     .run = dh_validate_dhelix_speedups},
    {.name = "dhelix-a800",
     .form = DH_VALIDATION_BARS,
     .paper = "dhelix-paper",
     .file = "dhelix_figs12_13a_15_tflops",
     .figure = "13a",
     .doc = "TFLOP/s a device of three systems, Llama-66B, 16K and 32K tokens, 64 A800",
     .how = "as dhelix-throughput, cluster a800, 2 Mi tokens a step; no constant rests on it",
     .unit = "TFLOP/s",
     .measure = DH_VALIDATION_RELATIVE,
     .run = dh_validate_dhelix_systems},
    {.name = "dhelix-a800-speedups",
     .form = DH_VALIDATION_BARS,
     .paper = "dhelix-paper",
     .file = "dhelix_figs12_13a_15_tflops",
     .figure = "13a",
     .doc = "speed-ups over Megatron-LM in the same jobs",
     .how = "as dhelix-speedups; no constant rests on it",
     .unit = "%",
     .measure = DH_VALIDATION_POINTS,
     .run = dh_validate_dhelix_speedups},
    {.name = "dhelix-ablation",
     .form = DH_VALIDATION_BARS,
     .paper = "dhelix-paper",
     .file = "dhelix_figs12_13a_15_tflops",
     .figure = "15",
     .doc = "gains of DHelix' switches one after another, Llama-39B, two and four context-parallel "
            "ranks, 64 A40",
     .how = "as dhelix-speedups: strategy dhelix-paper with overlap.cross, .comm_comm and .wgrad "
            "off, and on one after another; no constant rests on it",
     .unit = "%",
     .measure = DH_VALIDATION_POINTS,
     .run = dh_validate_dhelix_speedups},
    {.name = "dhelix-experts",
     .paper = "dhelix-paper",
     .file = "dhelix_table6_phi31b_a40",
     .doc = "tokens a second of three systems, Phi-31B with 16 experts, 64 A40",
     .how = "job dhelix-phi-31b, systems as in dhelix-throughput; the load of experts rests on "
            "figure 3's share of the exchanges and on Megatron-LM's row",
     .unit = "1/s",
     .measure = DH_VALIDATION_RELATIVE,
     .aim = 10,
     .fitted = "Megatron-LM",
     .run = dh_validate_dhelix_experts},
    {.name = "dhelix-hidden",
     .form = DH_VALIDATION_BARS,
     .paper = "dhelix-paper",
     .file = "dhelix_hidden_a40",
     .doc = "communication hidden by three systems, means of the models of figure 11",
     .how = "jobs of dhelix-throughput: what of communication's own time does not make the step "
            "longer than computation's own time and waiting for other ranks",
     .unit = "%",
     .measure = DH_VALIDATION_POINTS,
     .run = dh_validate_dhelix_hidden},
    {.name = "dhelix-text-shares",
     .form = DH_VALIDATION_BARS,
     .paper = "dhelix-paper",
     .file = "dhelix_text_shares",
     .doc = "shares of Megatron-LM's time that the text gives, A40 and A800",
     .how = "jobs of figures 12, 13a and 15: as dhelix-shares; no constant rests on it",
     .unit = "%",
     .measure = DH_VALIDATION_POINTS,
     .run = dh_validate_dhelix_text},
    {.name = "dhelix-h100",
     .form = DH_VALIDATION_BARS,
     .paper = "dhelix-paper",
     .file = "dhelix_table7_h100",
     .doc = "communication that DHelix hides on H100, 8 to 32 tensor-parallel ranks",
     .how = "job dhelix-llama-39b over tensor parallelism alone, system megatron-dhelix, strategy "
            "dhelix-paper, simulated on cluster h100: as dhelix-hidden; the table names no model "
            "and no mesh; no constant rests on it",
     .unit = "%",
     .measure = DH_VALIDATION_POINTS,
     .aim = 6,
     .run = dh_validate_dhelix_h100},
    {.name = "dhelix-h100-visible",
     .form = DH_VALIDATION_BARS,
     .paper = "dhelix-paper",
     .file = "dhelix_table7_h100",
     .doc = "the rest of that communication: slowdown of computation, launch interval",
     .how = "the same jobs: cause slowdown, and all other causes of exposed time",
     .unit = "%",
     .measure = DH_VALIDATION_POINTS,
     .run = dh_validate_dhelix_h100_visible},
    {.name = "dhelix-largest",
     .form = DH_VALIDATION_BARS,
     .paper = "dhelix-paper",
     .file = "dhelix_largest_a40",
     .doc = "largest model that trains on 64 A40, dp 4, tp 8, pp 2, of three systems",
     .how = "job dhelix-llama-39b with as many layers as fill the memory that an A40 shows (memory "
            "as the system needs it, by the line through 8 and 12 layers), half-precision "
            "gradients, the optimizer not shared by data-parallel ranks",
     .unit = "thousand million parameters",
     .measure = DH_VALIDATION_RELATIVE,
     .aim = 10,
     .run = dh_validate_dhelix_largest},
    {.name = "dhelix-volumes",
     .form = DH_VALIDATION_BARS,
     .paper = "dhelix-paper",
     .file = "dhelix_table1_comm_estimate_llama405b",
     .doc =
         "bytes that a device sends in a step of Llama 3 405B, inside its node and between nodes",
     .how =
         "job dhelix-405b-volumes, simulated on cluster h100: what its instructions send, by the "
         "table's conventions (src/validate/volumes.c) and in its digits",
     .unit = "GiB",
     .measure = DH_VALIDATION_ABSOLUTE,
     .exact = true,
     .run = dh_validate_volumes},
    {.name = "oef-h100",
     .form = DH_VALIDATION_BARS,
     .paper = "dhelix-paper",
     .file = "dhelix_h100_pairwise_oef_matrix",
     .doc = "overlap effectiveness by class of operators, H100",
     .how = "the classes of cluster h100, which has them from the paper's figure 4",
     .unit = "",
     .measure = DH_VALIDATION_ABSOLUTE,
     .run = dh_validate_oef},
    {.name = "hotspa",
     .form = DH_VALIDATION_BARS,
     .file = "hotspa_table3",
     .doc = "a mini-batch of HotSPa by groups of lengths, three choices of strategies, two data "
            "sets, LLaMA 32B on 32 A800",
     .how = "job hotspa-32b, simulated on cluster a800; lengths are not published: the times of "
            "strategy static give each group's tokens (src/validate/hotspa.c)",
     .unit = "s",
     .measure = DH_VALIDATION_RELATIVE,
     .run = dh_validate_hotspa},
    {.name = "survey",
     .form = DH_VALIDATION_BARS,
     .file = "survey_gains",
     .doc = "speed-ups that CoCoNet, Google's decomposition, Centauri, Flux and Domino publish",
     .how = "jobs survey-*: the system's strategy over sequential, for one job of the kind that "
            "was measured; the row says whether the setting is the same",
     .unit = "times",
     .measure = DH_VALIDATION_RELATIVE,
     .run = dh_validate_survey},
    {.name = "contention",
     .form = DH_VALIDATION_BARS,
     .file = "overlap_contention_published",
     .doc = "slow-down of computation during communication",
     .how =
         "1 - OEF of GEMMs and attention, mean and largest beside all links of clusters a100 and "
         "h100; on H100 beside links inside a node, against the middle of the published range",
     .unit = "%",
     .measure = DH_VALIDATION_POINTS,
     .run = dh_validate_contention},
    {.name = "hardware",
     .file = "hardware_specs",
     .doc = "peaks, memory and NVLink of devices in cluster files",
     .how = "as the cluster file has it, where the published figure is a single one",
     .unit = "",
     .measure = DH_VALIDATION_RELATIVE,
     .aim = 0.1,
     .run = dh_validate_hardware},
    {.name = "gemm-fp8",
     .file = "azure_gemm_fp8",
     .doc = "8-bit matrix multiplications alone, H100 and H200",
     .how = "as clusters h100 and h200 have them",
     .unit = "TFLOP/s",
     .measure = DH_VALIDATION_RELATIVE,
     .rests = {"gemm.fp8"},
     .rests_cluster = "h100",
     .run = dh_validate_gemm_fp8},
    {.name = "gemm-a100",
     .file = "simumax_a100_gemm",
     .doc = "matrix products of Transformer Engine alone, bf16, A100 (PCIe)",
     .how = "as cluster a100 has them; no constant rests on this table",
     .unit = "us",
     .measure = DH_VALIDATION_RELATIVE,
     .run = dh_validate_a100_gemm},
    {.name = "flash-a100",
     .file = "flash_attention_a100",
     .doc =
         "FlashAttention-2 alone, forward and backward, by length, mask and head dimension, A100",
     .how = "as cluster a100 has it",
     .unit = "TFLOP/s",
     .measure = DH_VALIDATION_RELATIVE,
     .rests = {"attention.grad_efficiency", "attention.start_keys", "attention.head_half"},
     .rests_cluster = "a100",
     .run = dh_validate_flash_attention},
    {.name = "attention-a100",
     .file = "simumax_a100_attention",
     .doc = "causal attention of Transformer Engine alone, 4,096 tokens, bf16, A100 (PCIe)",
     .how = "as cluster a100 has it; no constant rests on this table",
     .unit = "us",
     .measure = DH_VALIDATION_RELATIVE,
     .run = dh_validate_a100_attention},
    {.name = "gemm-b200",
     .file = "simumax_b200_gemm",
     .doc = "matrix multiplications of Transformer Engine alone, bf16, B200",
     .how = "as cluster b200 has them",
     .unit = "us",
     .measure = DH_VALIDATION_RELATIVE,
     .rests = {"gemm.efficiency"},
     .rests_cluster = "b200",
     .run = dh_validate_b200_gemm},
    {.name = "attention-b200",
     .file = "simumax_b200_attention",
     .doc = "causal attention of Transformer Engine alone, bf16, B200",
     .how = "as cluster b200 has it",
     .unit = "us",
     .measure = DH_VALIDATION_RELATIVE,
     .rests = {"attention.efficiency", "attention.grad_efficiency"},
     .rests_cluster = "b200",
     .run = dh_validate_b200_attention},
    {.name = "nccl-b200",
     .file = "simumax_b200_collectives",
     .doc = "collectives of 16 MiB to 1 GiB inside a node of 8 B200",
     .how = "cluster b200: the fastest algorithm, which the row names",
     .unit = "us",
     .measure = DH_VALIDATION_RELATIVE,
     .rests = {"local.efficiency", "local.in_switch", "local.step_us"},
     .rests_cluster = "b200",
     .run = dh_validate_nccl_constants},
    {.name = "simumax-dense",
     .file = "simumax_b200_dense",
     .doc = "steps of Llama 3 70B and 405B with 12 and 4 layers, Megatron, 8 B200",
     .how = "jobs simumax-*, simulated on cluster b200; no constant rests on this table",
     .unit = "ms",
     .measure = DH_VALIDATION_RELATIVE,
     .aim = 8,
     .run = dh_validate_b200_dense},
    {.name = "simumax-memory",
     .file = "simumax_b200_dense",
     .doc = "most memory of a device in the same steps",
     .how = "the same simulations: memory as the jobs' system would need it",
     .unit = "GiB",
     .measure = DH_VALIDATION_RELATIVE,
     .run = dh_validate_b200_memory},
    {.name = "nccl-h100",
     .file = "h100_nccl_constants",
     .doc = "collectives of 16 MiB to 1 GiB inside a node and over up to 16 nodes of 8 H100",
     .how = "cluster h100: the fastest algorithm, which the row names",
     .unit = "us",
     .measure = DH_VALIDATION_RELATIVE,
     .rests = {"local.efficiency", "local.in_switch", "local.step_us", "network.efficiency",
               "network.in_switch", "network.step_us"},
     .rests_cluster = "h100",
     .run = dh_validate_nccl_constants},
    {.name = "nccl-all-reduce",
     .file = "vtrain_nccl_allreduce_a100_8gpu",
     .doc = "all-reduce of 1 MiB to 1 GiB inside a node of 8 A100",
     .how = "ring and tree on cluster a100, the faster one",
     .unit = "us",
     .measure = DH_VALIDATION_RELATIVE,
     .rests = {"local.efficiency", "local.step_us"},
     .rests_cluster = "a100",
     .run = dh_validate_nccl},
};

const dh_validation_table *dh_validation_tables(size_t *n)
{
    *n = DH_COUNTOF(tables);
    return tables;
}

dh_status dh_validation_find_all(dh_ctx *ctx, const char *name, const dh_validation_table **first,
                                 size_t *n)
{
    const char *names[2 * DH_COUNTOF(tables)];
    size_t n_names = 0;
    *n = 0;
    for (size_t i = 0; i < DH_COUNTOF(tables); i++) {
        const dh_validation_table *t = &tables[i];
        const bool is_it = strcmp(t->name, name) == 0 || (t->paper && strcmp(t->paper, name) == 0);
        names[n_names++] = t->name;
        if (t->paper) names[n_names++] = t->paper;
        if (!is_it) continue;
        if (*n == 0) *first = t;
        *n += 1;
    }
    if (*n) return DH_OK;
    const char *near = dh_nearest(name, names, n_names);
    return dh_fail(ctx, DH_EMISSING,
                   "no published table is called %s%s%s; dhelix list tables has all", name,
                   near ? "; did you mean " : "", near ? near : "");
}

dh_status dh_validation_find(dh_ctx *ctx, const char *name, const dh_validation_table **table)
{
    size_t n;
    DH_TRY(dh_validation_find_all(ctx, name, table, &n));
    if (n == 1) return DH_OK;
    return dh_fail(ctx, DH_EINVAL, "%s are %zu tables: name one of them (dhelix list tables)", name,
                   n);
}

static dh_status find_cluster(dh_ctx *ctx, const char *name, dh_cluster **cluster)
{
    const size_t n = strlen(DH_SHIPPED_CLUSTERS);
    for (size_t i = 0; strncmp(name, DH_SHIPPED_CLUSTERS, n) == 0 && i < dh_shipped_clusters_n;
         i++) {
        const dh_embedded *f = &dh_shipped_clusters[i];
        const size_t length = strlen(f->name);
        if (strncmp(name + n, f->name, length) == 0 && strcmp(name + n + length, ".yaml") == 0)
            return dh_cluster_parse(ctx, (const char *)f->text, f->n_bytes, name, cluster);
    }
    return dh_cluster_find(ctx, name, cluster);
}

dh_status dh_validation_cluster(dh_ctx *ctx, const dh_validation *v, const char *name,
                                dh_cluster **cluster)
{
    dh_cluster *c;
    DH_TRY(find_cluster(ctx, v->cluster ? v->cluster : name, &c));
    for (size_t i = 0; i < v->n_changes; i++) {
        const dh_status st = dh_cluster_set(ctx, c, v->changes[i].key, v->changes[i].value);
        if (st == DH_OK) continue;
        dh_cluster_destroy(c);
        return st;
    }
    *cluster = c;
    return DH_OK;
}

dh_status dh_validation_on_cluster(dh_ctx *ctx, dh_validation *v, const char *name,
                                   dh_validation_add_rows *add_rows)
{
    dh_published t;
    dh_cluster *cluster;
    DH_TRY(dh_published_read(ctx, v->arena, v->table->file, &t));
    DH_TRY(dh_validation_cluster(ctx, v, name, &cluster));
    const dh_status st = add_rows(ctx, v, cluster, &t);
    dh_cluster_destroy(cluster);
    return st;
}

bool dh_validation_has_aim(const dh_validation_table *table)
{
    return table->exact || table->aim > 0;
}

bool dh_validation_meets_aim(const dh_validation *v)
{
    /* The rounding of a decimal number to binary is no error. */
    if (v->n_orders_right < v->n_orders) return false;
    return v->table->exact ? v->max_error < 1e-9 : v->mean_error <= v->table->aim;
}

static bool is_fitted(const dh_validation_table *t, const char *label)
{
    char part[64];
    if (!t->fitted || strcmp(t->fitted, "*") == 0) return t->fitted;
    for (const char *at = t->fitted; *at; at += strspn(at, "|")) {
        const size_t n = strcspn(at, "|");
        snprintf(part, sizeof part, "%.*s", (int)n, at);
        if (strstr(label, part)) return true;
        at += n;
    }
    return false;
}

static void summarise(dh_validation *v)
{
    for (size_t i = 0; i < v->n_rows; i++) {
        v->rows[i].fitted = is_fitted(v->table, v->rows[i].label);
        v->mean_error += v->rows[i].error / (double)v->n_rows;
        v->max_error = DH_MAX(v->max_error, v->rows[i].error);
    }
}

/* As `like` says: its table, cluster, steps, changes and rows, of which there are none yet. */
static dh_status begin(dh_ctx *ctx, const dh_validation *like, dh_validation **validation)
{
    dh_published published;
    dh_arena *arena = dh_arena_create();
    dh_validation *v = arena ? DH_NEW(arena, dh_validation) : NULL;
    dh_status st = v ? DH_OK : dh_no_memory(ctx);
    if (st == DH_OK) {
        *v = *like;
        v->arena = arena;
        st = dh_published_read(ctx, arena, v->table->file, &published);
    }
    if (st != DH_OK) {
        dh_arena_destroy(arena);
        return st;
    }
    v->source = published.source;
    *validation = v;
    return DH_OK;
}

static dh_status validate(dh_ctx *ctx, const dh_validation *like, dh_validation **validation)
{
    dh_validation *v = NULL;
    dh_status st = begin(ctx, like, &v);
    if (st == DH_OK) st = v->table->run(ctx, v);
    if (st != DH_OK) {
        dh_validation_destroy(v);
        return dh_ctx_while(ctx, "validating %s", like->table->name);
    }
    summarise(v);
    *validation = v;
    return DH_OK;
}

dh_status dh_validate(dh_ctx *ctx, const dh_validation_table *table, const char *cluster,
                      dh_validation_steps *steps, dh_validation **validation)
{
    const dh_validation like = {.table = table, .cluster = cluster, .steps = steps};
    return validate(ctx, &like, validation);
}

dh_validation *dh_validation_list(dh_ctx *ctx, const dh_validation_table *table,
                                  const char *cluster, dh_validation_steps *steps)
{
    const dh_validation like = {.table = table, .cluster = cluster, .steps = steps, .lists = true};
    dh_validation *v = NULL;
    if (begin(ctx, &like, &v) == DH_OK) (void)v->table->run(ctx, v);
    return v;
}

dh_status dh_validate_changed(dh_ctx *ctx, const dh_validation_table *table, const char *cluster,
                              dh_validation_steps *steps, const dh_cluster_change *changes,
                              size_t n_changes, dh_validation **validation)
{
    const dh_validation like = {.table = table,
                                .cluster = cluster,
                                .steps = steps,
                                .changes = changes,
                                .n_changes = n_changes,
                                .rested_on = true};
    return validate(ctx, &like, validation);
}

void dh_validation_destroy(dh_validation *validation)
{
    if (validation) dh_arena_destroy(validation->arena);
}
