/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/bench_report.c - rows of a bench as a table and as JSON lines. */
#include "bench_report.h"
#include "bench_stats.h"

#include <jansson.h>
#include <string.h>

void bench_settle(bench_row *row)
{
    double values[BENCH_SAMPLES];
    size_t n = 0;

    for (size_t i = 0; i < row->n; i++)
        if (row->batch[i].quiet) values[n++] = row->batch[i].seconds;
    row->n_quiet = n;
    row->disturbed = n < BENCH_ENOUGH;
    for (size_t i = 0; row->n_quiet == 0 && i < row->n; i++)
        values[n++] = row->batch[i].seconds;
    if (n) bench_quartiles(values, n, row->time);
}

void bench_compare(bench_row *row, const bench_row *other)
{
    const size_t n = row->n < other->n ? row->n : other->n;
    double ratios[BENCH_SAMPLES], quartiles[3];
    size_t pairs = 0;

    for (size_t i = 0; i < n; i++)
        if (row->batch[i].quiet && other->batch[i].quiet && row->batch[i].seconds > 0)
            ratios[pairs++] = other->batch[i].seconds / row->batch[i].seconds;
    row->ratio = 0;
    if (pairs < BENCH_ENOUGH) return;
    bench_quartiles(ratios, pairs, quartiles);
    row->ratio = quartiles[1];
}

/* ---- the table ---- */

static const char *duration(char *out, size_t size, double seconds)
{
    if (seconds < 1e-3)
        snprintf(out, size, "%.3g us", seconds * 1e6);
    else if (seconds < 1)
        snprintf(out, size, "%.4g ms", seconds * 1e3);
    else
        snprintf(out, size, "%.4g s", seconds);
    return out;
}

static const char *size_text(char *out, size_t size, double bytes)
{
    if (bytes < 0x1p20)
        snprintf(out, size, "%.0f KiB", bytes / 0x1p10);
    else if (bytes < 0x1p30)
        snprintf(out, size, "%.0f MiB", bytes / 0x1p20);
    else
        snprintf(out, size, "%.0f GiB", bytes / 0x1p30);
    return out;
}

static void print_rates_of_cpus(FILE *out, const bench_roof *roof)
{
    fprintf(out, "roof with %zu thread%s (%s): binary32 FMA %.0f GFLOP/s",
            roof->threads, roof->threads == 1 ? "" : "s", roof->kernel,
            roof->fma / 1e9);
    if (roof->tile > 0)
        fprintf(out, ", %.0f beside the loads of a tile of 12 x 32", roof->tile / 1e9);
    fputs("; bf16 products ", out);
    if (roof->dot > 0)
        fprintf(out, "%.0f; AMX ", roof->dot / 1e9);
    else
        fputs("not available; AMX ", out);
    if (roof->amx > 0)
        fprintf(out, "%.0f\n", roof->amx / 1e9);
    else
        fputs("not available\n", out);
}

static void print_rates_of_device(FILE *out, const bench_roof *roof)
{
    fprintf(out, "roof of %s (%s)", roof->device, roof->kernel);
    if (roof->emulated) fputs(", which says nothing, so there is no share", out);
    fprintf(out, ": binary32 %.0f GFLOP/s, bf16 %.0f; copy %.3g GB/s\n",
            roof->fma / 1e9, roof->dot / 1e9, roof->copy / 1e9);
}

void bench_table_roof(FILE *out, const bench_roof *roof)
{
    char text[32];

    if (roof->missing[0]) {
        fprintf(out, "roof of the device: not known: %s\n", roof->missing);
        return;
    }
    if (roof->device[0])
        print_rates_of_device(out, roof);
    else
        print_rates_of_cpus(out, roof);
    fprintf(out, "  read, GB/s%s:", roof->usual[0] > 0 ? ", best (usual)" : "");
    for (size_t i = 0; i < roof->n_sizes; i++) {
        if (i % 2 && i + 1 < roof->n_sizes) continue;
        fprintf(out, "  %s %.3g", size_text(text, sizeof text, roof->size[i]),
                roof->bandwidth[i] / 1e9);
        if (roof->usual[i] > 0) fprintf(out, " (%.3g)", roof->usual[i] / 1e9);
    }
    fputc('\n', out);
}

void bench_table_head(FILE *out, const char *versus)
{
    fprintf(out, "%-24s %5s %3s %6s %3s %-20s %9s %21s %9s %6s %7s %5s %5s %6s",
            "shape", "n", "k", "T", "thr", "backend", "median", "quartiles", "tokens/s",
            "GB/s", "GFLOP/s", "CPUs", "roof", "usual");
    if (versus) fprintf(out, "  %.20s takes", versus);
    fputc('\n', out);
}

/* 0: not known. */
static void print_share(FILE *out, double share)
{
    if (share > 0)
        fprintf(out, "%3.0f %%", 100 * share);
    else
        fprintf(out, "%5s", "-");
}

void bench_table_row(FILE *out, const bench_row *row)
{
    char name[64], median[24], low[24], high[24], range[56];
    const double t = row->time[1];

    snprintf(name, sizeof name, "%.24s %.26s%s", row->shape, row->op,
             row->config.dtype == SLM_BF16 ? " bf16" : "");
    fprintf(out, "%-24s %5zu %3zu %6zu %3zu %-20.40s ", name, row->config.n_experts,
            row->config.top_k, row->n_tokens, row->threads, row->backend);
    if (row->skipped[0] || row->n == 0) {
        fprintf(out, "not timed: %s\n", row->skipped);
        return;
    }
    snprintf(range, sizeof range, "%s..%s", duration(low, sizeof low, row->time[0]),
             duration(high, sizeof high, row->time[2]));
    fprintf(out, "%9s %21s %9.4g %6.3g %7.4g %5.2f ",
            duration(median, sizeof median, t), range, (double)row->n_tokens / t,
            bench_bytes(&row->cost) / t / 1e9, row->cost.flops / t / 1e9, row->cores);
    if (row->disturbed) {
        fprintf(out, "disturbed: %zu of %zu batches were quiet", row->n_quiet, row->n);
    } else {
        print_share(out, row->roof / t);
        fputs("  ", out);
        print_share(out, row->usual / t);
    }
    if (row->ratio > 0) fprintf(out, "  %.2fx", row->ratio);
    fputc('\n', out);
}

void bench_table_foot(FILE *out, const bench_row *rows, size_t n)
{
    static const double most = 1.05;
    size_t timed = 0, disturbed = 0, above = 0;

    for (size_t i = 0; i < n; i++) {
        if (rows[i].skipped[0]) continue;
        timed++;
        disturbed += (size_t)rows[i].disturbed;
        above += !rows[i].disturbed && rows[i].roof > most * rows[i].time[1];
    }
    fprintf(out, "%zu timed, %zu of them disturbed by other load%s\n", timed, disturbed,
            disturbed ? ": no evidence; repeat them on a quiet machine" : "");
    if (above)
        fprintf(out,
                "%zu above %.0f %% of the roof, which other load lowered when it was "
                "measured: repeat them for their share; times and ratios hold\n",
                above, 100 * most);
}

/* Seconds of a call on the average over all batches, as those of phases are. */
static double mean(const bench_row *row)
{
    double sum = 0;

    for (size_t i = 0; i < row->n; i++) sum += row->batch[i].seconds;
    return row->n ? sum / (double)row->n : 0;
}

static void print_phase(FILE *out, const char *name, double seconds, double all,
                        double roof)
{
    char text[24];

    fprintf(out, "    %-34.48s %9s %4.0f %%", name,
            duration(text, sizeof text, seconds), 100 * seconds / all);
    if (roof > 0 && seconds > 0)
        fprintf(out, "   %3.0f %% of its roof", 100 * roof / seconds);
    fputc('\n', out);
}

void bench_table_phases(FILE *out, const bench_row *row)
{
    const double all = mean(row);
    double known = 0;

    if (row->n_phases == 0 || all <= 0) return;
    for (size_t i = 0; i < row->n_phases; i++) {
        print_phase(out, row->phase[i].name, row->phase[i].seconds, all,
                    row->phase_roof[i]);
        known += row->phase[i].seconds;
    }
    print_phase(out, "before and after", all > known ? all - known : 0, all, 0);
}

/* ---- JSON lines ---- */

static void put(FILE *out, json_t *object)
{
    json_dumpf(object, out, JSON_COMPACT);
    fputc('\n', out);
    json_decref(object);
}

void bench_json_head(FILE *out, const bench_origin *origin)
{
    put(out,
        json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:s}", "kind", "bench", "format",
                  "slm-bench/1", "slmoe", origin->slmoe, "spec", origin->spec, "system",
                  origin->system, "cpu", origin->cpu, "date", origin->date));
}

/* Rates, of a device without those that were usual. */
static json_t *reading_of(const bench_roof *roof)
{
    json_t *list = json_array();

    for (size_t i = 0; i < roof->n_sizes; i++) {
        json_t *rates = json_pack("[f, f]", roof->size[i], roof->bandwidth[i]);

        if (roof->usual[i] > 0) json_array_append_new(rates, json_real(roof->usual[i]));
        json_array_append_new(list, rates);
    }
    return list;
}

void bench_json_roof(FILE *out, const bench_roof *roof)
{
    const int on_cpus = !roof->device[0] && !roof->missing[0];
    json_t *line =
        json_pack("{s:s, s:s, s:I, s:s, s:f, s:f, s:f, s:o}", "kind", "roof", "device",
                  on_cpus ? "cpu" : roof->device, "threads", (json_int_t)roof->threads,
                  "kernel", roof->kernel, "fma", roof->fma, "dot", roof->dot, "amx",
                  roof->amx, "read", reading_of(roof));

    if (roof->device[0])
        json_object_update_new(line, json_pack("{s:b, s:f}", "emulated", roof->emulated,
                                               "copy", roof->copy));
    if (roof->missing[0])
        json_object_set_new(line, "missing", json_string(roof->missing));
    if (roof->tile > 0) json_object_set_new(line, "tile", json_real(roof->tile));
    put(out, line);
}

static json_t *batches(const bench_row *row, int quiet)
{
    json_t *array = json_array();

    for (size_t i = 0; i < row->n; i++)
        if (row->batch[i].quiet == quiet)
            json_array_append_new(array, json_real(row->batch[i].seconds));
    return array;
}

static json_t *phases(const bench_row *row)
{
    json_t *array = json_array();

    for (size_t i = 0; i < row->n_phases; i++)
        json_array_append_new(
            array,
            json_pack("{s:s, s:f, s:f, s:f, s:f}", "name", row->phase[i].name,
                      "seconds", row->phase[i].seconds, "flops", row->phase[i].flops,
                      "bytes", row->phase[i].bytes, "roof", row->phase_roof[i]));
    return array;
}

void bench_json_row(FILE *out, const bench_row *row, const char *versus)
{
    json_t *object = json_pack(
        "{s:s, s:s, s:s, s:s, s:I, s:I, s:I, s:s, s:I}", "kind", "row", "shape",
        row->shape, "op", row->op, "dtype", slm_dtype_name(row->config.dtype), "T",
        (json_int_t)row->n_tokens, "n", (json_int_t)row->config.n_experts, "k",
        (json_int_t)row->config.top_k, "backend", row->backend, "threads",
        (json_int_t)row->threads);

    if (row->skipped[0] || row->n == 0) {
        json_object_set_new(object, "skipped", json_string(row->skipped));
        put(out, object);
        return;
    }
    json_object_update_new(
        object,
        json_pack("{s:I, s:I, s:f, s:f, s:f, s:f, s:f, s:b, s:[f,f,f], s:o, s:o}",
                  "judged", (json_int_t)row->judged, "layers", (json_int_t)row->layers,
                  "cores", row->cores, "flops", row->cost.flops, "bytes",
                  bench_bytes(&row->cost), "working_set", row->cost.working_set, "roof",
                  row->roof, "disturbed", row->disturbed, "quartiles", row->time[0],
                  row->time[1], row->time[2], "quiet", batches(row, 1), "loud",
                  batches(row, 0)));
    if (row->roof > 0)
        json_object_set_new(object, "bound",
                            json_string(row->moving ? "bytes" : "flops"));
    if (row->usual > 0) json_object_set_new(object, "usual", json_real(row->usual));
    if (row->n_phases) json_object_set_new(object, "phases", phases(row));
    if (row->ratio > 0) {
        json_object_set_new(object, "versus", json_string(versus));
        json_object_set_new(object, "ratio", json_real(row->ratio));
    }
    put(out, object);
}
