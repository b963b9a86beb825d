/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/vector_case.c - one case of a family. */
#include "vector_load.h"

#include <string.h>

enum {
    KEY_ID,
    KEY_NOTE,
    KEY_OP,
    KEY_PROVENANCE,
    KEY_SOURCE,
    KEY_TIER,
    KEY_CLAUSE,
    KEY_KILLS,
    KEY_TAGS,
    KEY_CONFIG,
    KEY_IN,
    KEY_OUT,
    KEY_STATUS,
    KEY_FIELD,
    KEY_INDEX,
    KEY_EITHER,
    KEY_ALIAS,
    KEY_SUPERSEDED_BY,
    N_KEYS
};

static const char *const keys[N_KEYS] = {
    "id",     "note",  "op",    "provenance", "source", "tier",
    "clause", "kills", "tags",  "config",     "in",     "out",
    "status", "field", "index", "either",     "alias",  "superseded_by"};

/* The members of one outcome, in a case or in an item of `either`. */
typedef struct outcome_nodes {
    const tree_node *values; /* `out` */
    const tree_node *status;
    const tree_node *field;
    const tree_node *index;
} outcome_nodes;

/* What a case may expect. MEMORY and INTERNAL are faults, UNSUPPORTED is a skip. */
static const slm_status statuses[] = {SLM_ERR_SHAPE,     SLM_ERR_ALIAS,  SLM_ERR_DOMAIN,
                                      SLM_ERR_NONFINITE, SLM_ERR_TARGET, SLM_ERR_TIE};
enum { N_STATUSES = sizeof statuses / sizeof *statuses };

static int load_id(loader *ld, const tree_node *node, const vec_family *family,
                   vec_case *out)
{
    const size_t before = strlen(family->name);
    char *own;
    size_t size;

    if (!load_word(ld, node, "id", false, 64, &own)) return 0;
    size = strlen(own);
    out->id = arena_new(ld->memory, before + size + 2, 1);
    if (!out->id) return load_no_memory(ld);
    memcpy(out->id, family->name, before);
    out->id[before] = '/';
    memcpy(out->id + before + 1, own, size);
    return 1;
}

static int load_op(loader *ld, const tree_node *node, slm_op *out)
{
    const char *names[SLM_OP_COUNT];
    size_t i;

    for (int op = 0; op < SLM_OP_COUNT; op++)
        names[op] = slm_op_describe((slm_op)op)->name;
    if (!load_choice(ld, node, "op", names, SLM_OP_COUNT, &i)) return 0;
    *out = (slm_op)i;
    return 1;
}

static int load_provenance(loader *ld, const tree_node *const *found, vec_case *out)
{
    const tree_node *source = found[KEY_SOURCE];
    const char *names[VEC_PROVENANCES];
    size_t i;

    for (int p = 0; p < VEC_PROVENANCES; p++)
        names[p] = vec_provenance_name((vec_provenance)p);
    if (!load_choice(ld, found[KEY_PROVENANCE], "provenance", names, VEC_PROVENANCES,
                     &i))
        return 0;
    out->provenance = (vec_provenance)i;
    if (source && !load_line(ld, source, "source", &out->source)) return 0;
    if (!source && (i == VEC_DOCUMENT || i == VEC_PUBLIC_REPORT))
        return load_fault(ld, &found[KEY_PROVENANCE]->begin,
                          "provenance %s needs a source", names[i]);
    if (i == VEC_PUBLIC_REPORT && strncmp(out->source, "https://", 8) != 0)
        return load_unexpected(ld, source, "source", "a link (https://...)");
    return 1;
}

static int load_tier(loader *ld, const tree_node *node, vec_tier *out)
{
    const char *names[VEC_TIERS];
    size_t i;

    *out = VEC_QUICK;
    if (!node) return 1;
    for (int t = 0; t < VEC_TIERS; t++) names[t] = vec_tier_name((vec_tier)t);
    if (!load_choice(ld, node, "tier", names, VEC_TIERS, &i)) return 0;
    *out = (vec_tier)i;
    return 1;
}

/* Each list of the case stands in place of the family's. */
static int load_lists(loader *ld, const load_defaults *defaults,
                      const tree_node *const *found, vec_case *out)
{
    const tree_node *clause = found[KEY_CLAUSE] ? found[KEY_CLAUSE] : defaults->clause;
    const tree_node *kills = found[KEY_KILLS] ? found[KEY_KILLS] : defaults->kills;
    const tree_node *tags = found[KEY_TAGS] ? found[KEY_TAGS] : defaults->tags;

    return load_words(ld, clause, "clause", true, &out->n_clauses, &out->clauses) &&
           (!kills ||
            load_words(ld, kills, "kills", false, &out->n_kills, &out->kills)) &&
           (!tags || load_words(ld, tags, "tags", false, &out->n_tags, &out->tags));
}

/* An index says nothing without the tensor that it counts in. */
static int load_index(loader *ld, const outcome_nodes *from, vec_outcome *out)
{
    uint64_t index;

    if (!from->index) return 1;
    if (!from->field)
        return load_fault(ld, &from->index->key->begin, "index needs a field");
    if (!load_size(ld, from->index, "index", &index)) return 0;
    out->has_index = true;
    out->index = (size_t)index;
    return 1;
}

static int load_status(loader *ld, const outcome_nodes *from, vec_outcome *out)
{
    const char *names[N_STATUSES];
    char *name;
    size_t i;

    for (size_t s = 0; s < N_STATUSES; s++) names[s] = slm_status_name(statuses[s]);
    if (!load_choice(ld, from->status, "status", names, N_STATUSES, &i)) return 0;
    out->status = statuses[i];
    if (from->field) {
        if (!load_word(ld, from->field, "field", false, SLM_NAME - 1, &name)) return 0;
        memcpy(out->field, name, strlen(name) + 1);
    }
    return load_index(ld, from, out);
}

/* `field` and `index` belong to a refusal. */
static int load_only_with_status(loader *ld, const outcome_nodes *from)
{
    if (from->status) return 1;
    if (from->field)
        return load_fault(ld, &from->field->key->begin, "field goes with status only");
    if (from->index)
        return load_fault(ld, &from->index->key->begin, "index goes with status only");
    return 1;
}

/* One outcome: `out` or `status`, as far as the keys are there. */
static int load_outcome(loader *ld, const outcome_nodes *from, const vec_case *test,
                        vec_outcome *out)
{
    out->mark = from->values ? from->values->begin : from->status->begin;
    if (!load_only_with_status(ld, from)) return 0;
    if (from->status) return load_status(ld, from, out);
    out->status = SLM_OK;
    return load_outputs(ld, from->values, test, out);
}

static int load_either(loader *ld, const tree_node *list, vec_case *out)
{
    static const char *const names[] = {"out", "status", "field", "index"};
    const tree_node *found[4];

    if (list->kind != TREE_LIST)
        return load_unexpected(ld, list, "either", "a list of outcomes");
    if (list->n < 2)
        return load_fault(ld, &list->begin,
                          "either: expected at least two outcomes, got %zu", list->n);
    out->outcomes = arena_new(ld->memory, list->n, sizeof *out->outcomes);
    if (!out->outcomes) return load_no_memory(ld);
    for (const tree_node *item = list->first; item; item = item->next) {
        if (!load_keys(ld, item, "an outcome", names, 4, found)) return 0;
        if (!found[0] == !found[1])
            return load_fault(ld, &item->begin,
                              "an outcome needs one of out and status, got %s",
                              found[0] ? "both" : "neither");
        if (!load_outcome(ld, &(outcome_nodes){found[0], found[1], found[2], found[3]},
                          out, &out->outcomes[out->n_outcomes++]))
            return 0;
    }
    return 1;
}

static int load_outcomes(loader *ld, const tree_node *map,
                         const tree_node *const *found, vec_case *out)
{
    const outcome_nodes own = {found[KEY_OUT], found[KEY_STATUS], found[KEY_FIELD],
                               found[KEY_INDEX]};
    const int n =
        (own.values != NULL) + (own.status != NULL) + (found[KEY_EITHER] != NULL);

    if (n != 1)
        return load_fault(ld, &map->begin,
                          "a case needs one of out, status and either, got %s",
                          n == 0 ? "none" : "several");
    if (!load_only_with_status(ld, &own)) return 0;
    if (found[KEY_EITHER]) return load_either(ld, found[KEY_EITHER], out);
    out->outcomes = arena_new(ld->memory, 1, sizeof *out->outcomes);
    if (!out->outcomes) return load_no_memory(ld);
    out->n_outcomes = 1;
    return load_outcome(ld, &own, out, out->outcomes);
}

/* X1 refuses every overlap, so a case with an alias cannot expect values. */
static int load_overlap(loader *ld, const tree_node *alias, vec_case *out)
{
    if (!alias) return 1;
    for (size_t i = 0; i < out->n_outcomes; i++)
        if (out->outcomes[i].status == SLM_OK)
            return load_fault(ld, &alias->key->begin, "alias goes with status only");
    return load_alias(ld, alias, out);
}

/* Looked up ahead: inputs come before outcomes, whose shapes depend on them. */
static bool expects_shape(const tree_node *const *found)
{
    const tree_node *list = found[KEY_EITHER];

    if (found[KEY_STATUS] && load_is(found[KEY_STATUS], "SLM_ERR_SHAPE")) return true;
    if (!list || list->kind != TREE_LIST) return false;
    for (const tree_node *item = list->first; item; item = item->next) {
        const tree_node *status =
            item->kind == TREE_MAP ? tree_member(item, "status") : NULL;

        if (status && load_is(status, "SLM_ERR_SHAPE")) return true;
    }
    return false;
}

static int load_tensors(loader *ld, const load_defaults *defaults, const tree_node *map,
                        const tree_node *const *found, vec_case *out)
{
    bool has_T, has_R;

    return load_config(ld, defaults->config, found[KEY_CONFIG], out, &has_T, &has_R) &&
           load_inputs(ld, defaults->in, found[KEY_IN], out) &&
           load_call_sizes(ld, map, out, has_T, has_R) &&
           (expects_shape(found) || load_check_inputs(ld, found[KEY_IN], out)) &&
           load_outcomes(ld, map, found, out) &&
           load_overlap(ld, found[KEY_ALIAS], out);
}

int load_case(loader *ld, const load_defaults *defaults, const tree_node *map,
              const vec_family *family, vec_case *out)
{
    static const size_t required[] = {KEY_ID, KEY_OP, KEY_PROVENANCE};
    const tree_node *found[N_KEYS];

    if (!load_keys(ld, map, "a case", keys, N_KEYS, found)) return 0;
    for (size_t i = 0; i < sizeof required / sizeof *required; i++)
        if (!found[required[i]])
            return load_fault(ld, &map->begin, "a case needs %s", keys[required[i]]);
    out->family = family;
    out->mark = map->begin;
    return load_id(ld, found[KEY_ID], family, out) &&
           (!found[KEY_NOTE] || load_line(ld, found[KEY_NOTE], "note", &out->note)) &&
           load_op(ld, found[KEY_OP], &out->op) && load_provenance(ld, found, out) &&
           load_tier(ld, found[KEY_TIER], &out->tier) &&
           load_lists(ld, defaults, found, out) &&
           (!found[KEY_SUPERSEDED_BY] ||
            load_word(ld, found[KEY_SUPERSEDED_BY], "superseded_by", true, 256,
                      &out->superseded_by)) &&
           load_tensors(ld, defaults, map, found, out);
}
