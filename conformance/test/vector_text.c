/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/test/vector_text.c - lawful golden vectors as text, for tests to break. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "vector_text.h"

#include <stdlib.h>
#include <string.h>

const char text_select[] =
    "schema: slm-vector/1\n"                                         /*  1 */
    "family: select/good\n"                                          /*  2 */
    "about: \"Größe ∑ ☃\"\n"                                         /*  3 */
    "clause: [R2, R3]\n"                                             /*  4 */
    "kills: [bias-ignored]\n"                                        /*  5 */
    "config: {n: 3, k: 2}\n"                                         /*  6 */
    "in:\n"                                                          /*  7 */
    "  bias: {shape: [3], data: [-0x1p+0, 0x0p+0, 0x1p+0]}\n"        /*  8 */
    "cases:\n"                                                       /*  9 */
    "  - id: one\n"                                                  /* 10 */
    "    note: weights of ü\n"                                       /* 11 */
    "    op: select\n"                                               /* 12 */
    "    provenance: hand\n"                                         /* 13 */
    "    tier: smoke\n"                                              /* 14 */
    "    in:\n"                                                      /* 15 */
    "      score: {shape: [1, 3], data: [0x1.cp-1, nan, 0x1p-2]}\n"  /* 16 */
    "    out:\n"                                                     /* 17 */
    "      ids: {shape: [1, 2], data: [2, any]} # ☃\n"               /* 18 */
    "      weight: # ratio\n"                                        /* 19 */
    "        shape: [1, 2]\n"                                        /* 20 */
    "        words: | # bits\n"                                      /* 21 */
    "          3fd0000000000000\n"                                   /* 22 */
    "          3fe8000000000000\n"                                   /* 23 */
    "\n"                                                             /* 24 */
    "      # a comment\n"                                            /* 25 */
    "      cutoff: {shape: [1], fill: 0x1p-2}\n"                     /* 26 */
    "  - id: two\n"                                                  /* 27 */
    "    op: select\n"                                               /* 28 */
    "    provenance: document\n"                                     /* 29 */
    "    source: the note, \"Router\"\n"                             /* 30 */
    "    config: {k: 0, T: 1}\n"                                     /* 31 */
    "    in: {score: {shape: [1, 3], fill: 0x1p-1}}\n"               /* 32 */
    "    status: SLM_ERR_DOMAIN\n"                                   /* 33 */
    "    field: top_k\n"                                             /* 34 */
    "    tags: [door]\n"                                             /* 35 */
    "    superseded_by: three\n"                                     /* 36 */
    "  - id: three\n"                                                /* 37 */
    "    op: select\n"                                               /* 38 */
    "    provenance: ref\n"                                          /* 39 */
    "    config: {profile: release, eps: 1e-7, rate: 0x1p-9}\n"      /* 40 */
    "    in:\n"                                                      /* 41 */
    "      score:\n"                                                 /* 42 */
    "        shape: [1, 3]\n"                                        /* 43 */
    "        gen: {seed: 1, bits: 8, scale: 0x1p-10, add: 0x1p-1}\n" /* 44 */
    "        sha256: "                                               /* 45 */
    "ff93c9212ed704b4fae7f8915602174369ca17ffda64d07d9db6175506a09f04\n"
    "    out:\n"                             /* 46 */
    "      ids: pending\n"                   /* 47 */
    "      weight: {shape: [1, 2], sha256: " /* 48 */
    "\"0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef\"}\n"
    "  - id: four\n"                                      /* 49 */
    "    op: select\n"                                    /* 50 */
    "    provenance: oracle\n"                            /* 51 */
    "    clause: [R4]\n"                                  /* 52 */
    "    kills: [nan-wins]\n"                             /* 53 */
    "    in: {logit: {shape: [1, 3], fill: nan}}\n"       /* 54 */
    "    either:\n"                                       /* 55 */
    "      - {status: SLM_ERR_NONFINITE, field: logit}\n" /* 56 */
    "      - out:\n"                                      /* 57 */
    "          ids: {shape: [1, 2], fill: any}\n"         /* 58 */
    "  - id: five\n"                                      /* 59 */
    "    op: select\n"                                    /* 60 */
    "    provenance: public-report\n"                     /* 61 */
    "    source: https://example.org/issues/1\n"          /* 62 */
    "    in: {score: {shape: [2, 3], fill: 0x1p-1}}\n"    /* 63 */
    "    status: SLM_ERR_ALIAS\n"                         /* 64 */
    "    alias: {output: weight, with: score}\n";         /* 65 */

const char text_layer[] =
    "schema: slm-vector/1\n"                                                    /*  1 */
    "family: layer/good\n"                                                      /*  2 */
    "about: A layer of linear experts in bf16.\n"                               /*  3 */
    "clause: [L2]\n"                                                            /*  4 */
    "config:\n"                                                                 /*  5 */
    "  {profile: linear, dtype: bf16, norm: none, d: 2, l: 1, n: 2, k: 2}\n"    /*  6 */
    "cases:\n"                                                                  /*  7 */
    "  - id: one\n"                                                             /*  8 */
    "    op: layer_forward\n"                                                   /*  9 */
    "    provenance: hand\n"                                                    /* 10 */
    "    in:\n"                                                                 /* 11 */
    "      x:\n"                                                                /* 12 */
    "        shape: [3, 2]\n"                                                   /* 13 */
    "        words: |-\n"                                                       /* 14 */
    "          3f800000 40000000 bf800000\n"                                    /* 15 */
    "          00000000  80000000 7fc00000\n"                                   /* 16 */
    "      bias: {shape: [2], data: [0x1.000002p+0, -inf]}\n"                   /* 17 */
    "      w_router: {shape: [2, 2], gen: {seed: 7, bits: 8, scale: 0x1p-8}}\n" /* 18 */
    "      w_down: {shape: [1, 2], fill: 0x1.fep+0}\n"                          /* 19 */
    "      w_expert: {shape: [2, 1, 1], fill: 0x1p+0}\n"                        /* 20 */
    "      w_lift: {shape: [2, 1], data: [0x1p-133, 0x1.fep+127]}\n"            /* 21 */
    "    out:\n"                                                                /* 22 */
    "      y: {shape: [3, 2], data: [0x1.123456789abcdp-3, 0x0.8p-1022,\n"      /* 23 */
    "        inf, -inf, nan, -0x0p+0]}\n";                                      /* 24 */

const char text_counts[] =
    "schema: slm-vector/1\n"                /*  1 */
    "family: hist/good\n"                   /*  2 */
    "about: >-\n"                           /*  3 */
    "  Counts are integers,\n"              /*  4 */
    "  and pooled.\n"                       /*  5 */
    "clause: [Q3]\n"                        /*  6 */
    "tags: [integer]\n"                     /*  7 */
    "config: {n: 2, k: 1, B: 3}\n"          /*  8 */
    "cases:\n"                              /*  9 */
    "  - id: merge\n"                       /* 10 */
    "    op: qb_hist_merge\n"               /* 11 */
    "    provenance: hand\n"                /* 12 */
    "    in:\n"                             /* 13 */
    "      parts: {shape: [2, 2, 3], gen: " /* 14 */
    "{seed: 3, bits: 4, scale: 0x1p+1, add: 40}}\n"
    "    out:\n"                                                     /* 15 */
    "      hist:\n"                                                  /* 16 */
    "        shape: [2, 3]\n"                                        /* 17 */
    "        words: |\n"                                             /* 18 */
    "          0000000000000001 ffffffffffffffff 7fffffffffffffff\n" /* 19 */
    "          0000000000000002 0000000000000003 0000000000000004\n" /* 20 */
    "  - id: add\n"                                                  /* 21 */
    "    op: qb_hist_accumulate\n"                                   /* 22 */
    "    provenance: hand\n"                                         /* 23 */
    "    in:\n"                                                      /* 24 */
    "      score: {shape: [0, 2], data: []}\n"                       /* 25 */
    "      bias: {shape: [2], fill: 0x0p+0}\n"                       /* 26 */
    "      hist: {shape: [2, 3], data: "                             /* 27 */
    "[0, 1, -1, 9223372036854775807, -9223372036854775808, 5]}\n"
    "    out:\n"                                                       /* 28 */
    "      hist: {shape: [2, 3], fill: 7}\n"                           /* 29 */
    "  - id: solve\n"                                                  /* 30 */
    "    op: qb_hist_solve\n"                                          /* 31 */
    "    provenance: hand\n"                                           /* 32 */
    "    config: {T: 4}\n"                                             /* 33 */
    "    in:\n"                                                        /* 34 */
    "      hist: {shape: [2, 3], fill: 1}\n"                           /* 35 */
    "      bias: {shape: [2], fill: 0x0p+0}\n"                         /* 36 */
    "    out:\n"                                                       /* 37 */
    "      new_bias: {shape: [2], data: [0x1.fffffep+127, -0x0p+0]}\n" /* 38 */
    "      candidate: {shape: [2], fill: 0x1p-1}\n"                    /* 39 */
    "  - id: misshapen\n"                                              /* 40 */
    "    op: permute\n"                                                /* 41 */
    "    provenance: hand\n"                                           /* 42 */
    "    in:\n"                                                        /* 43 */
    "      ids: {shape: [4, 2], data: "                                /* 44 */
    "[0, 1, 2147483647, -2147483648, 1, 0, 1, 0]}\n"
    "    status: SLM_ERR_SHAPE\n"; /* 45 */

char *text_replace(const char *text, const char *old, const char *new)
{
    const char *at = strstr(text, old);
    const size_t size = strlen(text) + strlen(new) + 1;
    char *copy = malloc(size);

    assert_non_null(copy);
    if (!at) fail_msg("the text has no '%s'", old);
    snprintf(copy, size, "%.*s%s%s", (int)(at - text), text, new, at + strlen(old));
    return copy;
}

vec_set *text_load(const char *text)
{
    vec_error error;
    vec_set *set = vec_load_memory("good.yaml", text, strlen(text), &error);

    if (!set)
        fail_msg("%s:%zu:%zu: %s", error.path, error.mark.line, error.mark.column,
                 error.what);
    return set;
}

static void expect(const char *text, const text_fault *fault)
{
    vec_error error;
    vec_set *set = vec_load_memory("bad.yaml", text, strlen(text), &error);

    if (set) {
        vec_free(set);
        fail_msg("'%.60s' loads; expected: %s", fault->new, fault->what);
    }
    assert_string_equal(error.path, "bad.yaml");
    if (error.mark.line != fault->line || error.mark.column != fault->column ||
        strcmp(error.what, fault->what) != 0)
        fail_msg("'%.60s': expected %zu:%zu: %s\ngot %zu:%zu: %s", fault->new,
                 fault->line, fault->column, fault->what, error.mark.line,
                 error.mark.column, error.what);
}

void text_faults(const char *text, const text_fault *faults, size_t n)
{
    vec_free(text_load(text));
    for (size_t i = 0; i < n; i++) {
        char *broken = text_replace(text, faults[i].old, faults[i].new);

        expect(broken, &faults[i]);
        free(broken);
    }
}

void text_whole_faults(const text_fault *faults, size_t n)
{
    for (size_t i = 0; i < n; i++) expect(faults[i].new, &faults[i]);
}
