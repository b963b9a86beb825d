/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/vector_args.c - a case's tensors against its operation and configuration.
 */
#include "vector_load.h"

#include <string.h>

enum { MAX_FIELDS = 64 };

/* Every argument that a case may give or expect; the layer's weights are inputs. */
typedef struct argument_list {
    const slm_field *field[MAX_FIELDS];
    size_t n;
} argument_list;

static bool is_input(const slm_field *field)
{
    return field->role == SLM_ROLE_IN || field->role == SLM_ROLE_OPTIONAL ||
           field->role == SLM_ROLE_INOUT;
}

static bool is_output(const slm_field *field)
{
    return field->role == SLM_ROLE_OUT || field->role == SLM_ROLE_TAP ||
           field->role == SLM_ROLE_INOUT;
}

static void add_fields(argument_list *list, const slm_field *fields, size_t n,
                       bool outputs)
{
    for (size_t i = 0; i < n && list->n < MAX_FIELDS; i++)
        if (outputs ? is_output(&fields[i]) : is_input(&fields[i]))
            list->field[list->n++] = &fields[i];
}

static argument_list list_fields(slm_op op, bool outputs)
{
    const slm_op_info *info = slm_op_describe(op);
    argument_list list = {.n = 0};

    add_fields(&list, info->fields, info->n_fields, outputs);
    if (info->prepared && !outputs) {
        size_t n;
        const slm_field *weights = slm_weight_fields(&n);

        add_fields(&list, weights, n, outputs);
    }
    return list;
}

static const slm_field *find_field(const argument_list *list, const char *name)
{
    for (size_t i = 0; i < list->n; i++)
        if (strcmp(list->field[i]->name, name) == 0) return list->field[i];
    return NULL;
}

static const char *expert_name(slm_expert_kind kind)
{
    static const char *const names[SLM_EXPERT_KINDS] = {"situ", "swiglu", "relu",
                                                        "linear"};

    return names[kind];
}

static int refuse_unknown(loader *ld, const tree_node *member, slm_op op,
                          const argument_list *list, bool outputs)
{
    const argument_list other = list_fields(op, !outputs);
    const char *what = outputs ? "output" : "input";
    const char *names[MAX_FIELDS];
    char known[160], shown[VEC_SHOWN];

    if (find_field(&other, member->key->text))
        return load_fault(ld, &member->key->begin, "'%s' is an %s of %s, not an %s",
                          member->key->text, outputs ? "input" : "output",
                          slm_op_describe(op)->name, what);
    for (size_t i = 0; i < list->n; i++) names[i] = list->field[i]->name;
    load_join(known, sizeof known, names, list->n);
    return load_fault(ld, &member->key->begin, "unknown %s '%s' of %s; known: %s", what,
                      vec_show(shown, member->key->text), slm_op_describe(op)->name,
                      known);
}

/* That every key of `in` or `out` is an argument and that the configuration has it. */
static int check_names(loader *ld, const tree_node *map, const vec_case *test,
                       bool outputs)
{
    const argument_list list = list_fields(test->op, outputs);

    if (map->kind != TREE_MAP)
        return load_unexpected(ld, map, outputs ? "out" : "in", "a mapping of tensors");
    for (const tree_node *member = map->first; member; member = member->next) {
        const slm_field *field = find_field(&list, member->key->text);

        if (!field) return refuse_unknown(ld, member, test->op, &list, outputs);
        if (slm_field_applies(field, &test->config)) continue;
        if (!(field->experts & (1u << test->config.expert)))
            return load_fault(ld, &member->key->begin,
                              "'%s' does not exist with expert: %s", field->name,
                              expert_name(test->config.expert));
        return load_fault(ld, &member->key->begin,
                          "'%s' does not exist with norm: none", field->name);
    }
    return 1;
}

int load_inputs(loader *ld, const tree_node *family, const tree_node *own,
                vec_case *out)
{
    const argument_list list = list_fields(out->op, false);

    if (family && !check_names(ld, family, out, false)) return 0;
    if (own && !check_names(ld, own, out, false)) return 0;
    out->in = arena_new(ld->memory, list.n, sizeof *out->in);
    if (!out->in) return load_no_memory(ld);
    for (size_t i = 0; i < list.n; i++) {
        const char *name = list.field[i]->name;
        const tree_node *node = own ? tree_member(own, name) : NULL;

        if (!node && family) node = tree_member(family, name);
        if (node && !load_tensor(ld, node, list.field[i], false, &out->config,
                                 &out->in[out->n_in++]))
            return 0;
    }
    return 1;
}

/* First dimension of the first input whose dims begin with that letter; 0 if none. */
static size_t leading_size(const vec_case *test, char letter)
{
    for (size_t i = 0; i < test->n_in; i++)
        if (test->in[i].field->dims[0] == letter) return test->in[i].shape[0];
    return 0;
}

int load_call_sizes(loader *ld, const tree_node *map, vec_case *out, bool has_T,
                    bool has_R)
{
    if (out->op == SLM_OP_qb_hist_solve && !has_T)
        return load_fault(ld, &map->begin,
                          "config.T is missing: no input of qb_hist_solve has it");
    if (!has_T) out->call.n_tokens = leading_size(out, 'T');
    if (!has_R) out->call.n_parts = leading_size(out, 'R');
    return 1;
}

/* "[T, 2f]" of the letters "Tg". */
static const char *dims_text(char *out, const char *dims)
{
    size_t used = 0;

    for (size_t i = 0; dims[i]; i++) {
        const char letter[2] = {dims[i], 0};
        const char *name = dims[i] == 'g'   ? "2f"
                           : dims[i] == 's' ? "S fs"
                           : dims[i] == 'N' ? "n + 1"
                           : dims[i] == 'q' ? "T k"
                                            : letter;

        used += (size_t)snprintf(out + used, LOAD_SHAPE - used, "%s%s", i ? ", " : "[",
                                 name);
    }
    snprintf(out + used, LOAD_SHAPE - used, "]");
    return out;
}

/* The shape that the configuration gives a field. */
static int wanted_shape(loader *ld, const vec_case *test, const vec_mark *mark,
                        const char *what, const slm_field *field, size_t *shape)
{
    char dims[LOAD_SHAPE];

    for (size_t i = 0; field->dims[i]; i++)
        if (!slm_dim(&test->config, &test->call, field->dims[i], &shape[i]))
            return load_fault(ld, mark,
                              "%s.%s: a size of %s does not fit in this machine", what,
                              field->name, dims_text(dims, field->dims));
    return 1;
}

static int check_shape(loader *ld, const vec_case *test, const char *what,
                       const vec_tensor *tensor)
{
    const uint32_t rank = (uint32_t)strlen(tensor->field->dims);
    char got[LOAD_SHAPE], want[LOAD_SHAPE], dims[LOAD_SHAPE];
    size_t shape[SLM_MAX_RANK];

    if (!wanted_shape(ld, test, &tensor->begin, what, tensor->field, shape)) return 0;
    if (rank == tensor->rank && memcmp(shape, tensor->shape, rank * sizeof *shape) == 0)
        return 1;
    return load_fault(ld, &tensor->begin,
                      "%s.%s: expected shape %s, which is %s, got %s", what,
                      tensor->field->name, dims_text(dims, tensor->field->dims),
                      load_shape_text(want, rank, shape),
                      load_shape_text(got, tensor->rank, tensor->shape));
}

static bool may_be_absent(const slm_field *field, const slm_config *config)
{
    if (field->role == SLM_ROLE_OPTIONAL) return true;
    return config->n_shared == 0 && strpbrk(field->dims, "sS") != NULL;
}

static int check_presence(loader *ld, const vec_mark *mark, const vec_case *test)
{
    const argument_list list = list_fields(test->op, false);

    for (size_t i = 0; i < list.n; i++) {
        const slm_field *field = list.field[i];

        if (!slm_field_applies(field, &test->config) ||
            may_be_absent(field, &test->config) ||
            vec_find(test->in, test->n_in, field->name))
            continue;
        return load_fault(ld, mark, "in.%s is missing: %s needs it", field->name,
                          slm_op_describe(test->op)->name);
    }
    if (test->op == SLM_OP_select && !vec_find(test->in, test->n_in, "score") ==
                                         !vec_find(test->in, test->n_in, "logit"))
        return load_fault(ld, mark, "in: expected one of score and logit, got %s",
                          vec_find(test->in, test->n_in, "score") ? "both" : "neither");
    return 1;
}

int load_check_inputs(loader *ld, const tree_node *own, const vec_case *test)
{
    if (!check_presence(ld, own ? &own->begin : &test->mark, test)) return 0;
    for (size_t i = 0; i < test->n_in; i++)
        if (!check_shape(ld, test, "in", &test->in[i])) return 0;
    return 1;
}

/* Whether a comment stands between key and value, or behind the value on its line. */
static bool has_comment(const tree_text *text, const tree_node *member)
{
    size_t at = member->key->end.byte;

    while (at < member->begin.byte && text->data[at] != '#') at++;
    if (at < member->begin.byte) return true;
    at = member->end.byte;
    while (at < text->size && text->data[at] == ' ') at++;
    return at < text->size && text->data[at] == '#';
}

/* What `gen` rewrites must be a block of its own, and a list may become a block. */
static int check_rewritable(loader *ld, const tree_node *map)
{
    if (map->style == TREE_FLOW)
        return load_fault(
            ld, &map->begin,
            "out: provenance ref needs block style, which `gen` rewrites");
    for (const tree_node *member = map->first; member; member = member->next)
        if (has_comment(ld->text, member))
            return load_fault(ld, &member->begin,
                              "out.%s: `gen` rewrites this value; put the comment on a "
                              "line of its own",
                              member->key->text);
    return 1;
}

static int load_output(loader *ld, const tree_node *node, const slm_field *field,
                       const vec_case *test, vec_tensor *out)
{
    char what[SLM_NAME + 8];

    if (strcmp(field->name, "cutoff") == 0 &&
        test->config.top_k == test->config.n_experts)
        return load_fault(ld, &node->key->begin,
                          "out.cutoff is not written when k = n");
    if (!load_tensor(ld, node, field, true, &test->config, out)) return 0;
    if (out->form != VEC_PENDING) return check_shape(ld, test, "out", out);
    if (test->provenance != VEC_REF)
        return load_fault(ld, &node->begin,
                          "out.%s: pending needs provenance ref: `gen` writes no other",
                          field->name);
    out->rank = (uint32_t)strlen(field->dims);
    snprintf(what, sizeof what, "out.%s", field->name);
    return wanted_shape(ld, test, &node->begin, "out", field, out->shape) &&
           load_count(ld, &node->begin, what, out->rank, out->shape, &out->count);
}

int load_outputs(loader *ld, const tree_node *map, const vec_case *test,
                 vec_outcome *out)
{
    const argument_list list = list_fields(test->op, true);

    if (!check_names(ld, map, test, true)) return 0;
    if (map->n == 0)
        return load_fault(ld, &map->begin, "out: expected a tensor, got none");
    if (test->provenance == VEC_REF && !check_rewritable(ld, map)) return 0;
    out->out = arena_new(ld->memory, list.n, sizeof *out->out);
    if (!out->out) return load_no_memory(ld);
    for (size_t i = 0; i < list.n; i++) {
        const tree_node *node = tree_member(map, list.field[i]->name);

        if (node &&
            !load_output(ld, node, list.field[i], test, &out->out[out->n_out++]))
            return 0;
    }
    return 1;
}

static int read_argument(loader *ld, const tree_node *node, const vec_case *test,
                         const char *what, bool output, const slm_field **out)
{
    const slm_op_info *info = slm_op_describe(test->op);
    const char *names[MAX_FIELDS];
    const slm_field *fields[MAX_FIELDS];
    size_t n = 0, i;

    for (size_t j = 0; j < info->n_fields; j++) {
        if (output && !is_output(&info->fields[j])) continue;
        if (!slm_field_applies(&info->fields[j], &test->config)) continue;
        fields[n] = &info->fields[j];
        names[n++] = info->fields[j].name;
    }
    if (!load_choice(ld, node, what, names, n, &i)) return 0;
    *out = fields[i];
    return 1;
}

int load_alias(loader *ld, const tree_node *map, vec_case *out)
{
    static const char *const keys[] = {"output", "with"};
    const tree_node *found[2];

    if (!load_keys(ld, map, "alias", keys, 2, found)) return 0;
    for (size_t i = 0; i < 2; i++)
        if (!found[i])
            return load_fault(ld, &map->begin, "alias.%s is missing", keys[i]);
    if (!read_argument(ld, found[0], out, "alias.output", true, &out->alias_output) ||
        !read_argument(ld, found[1], out, "alias.with", false, &out->alias_with))
        return 0;
    if (out->alias_output == out->alias_with)
        return load_fault(ld, &found[1]->begin, "alias.with: %s is the output itself",
                          out->alias_with->name);
    return 1;
}
