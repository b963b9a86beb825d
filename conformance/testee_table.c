/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/testee_table.c - a backend under test in the judge's own process: our own
 * mutants, and for a debugger any other. */
#include "plugin_neighbour.h"
#include "testee_kind.h"
#include "stopwatch.h"

#include <stdlib.h>
#include <string.h>

typedef struct table_testee {
    slm_testee base;
    slm_plugin plugin;
    plugin_session session;
    plugin_neighbour *neighbour;
    bool trusted;
} table_testee;

static void table_close(slm_testee *base)
{
    free(base);
}

static int table_offers(slm_testee *base, const vec_case *test, char *reason)
{
    const table_testee *testee = (const table_testee *)base;

    if (testee_is_for_the_door(test) && !testee_owns_the_door(&base->about)) {
        snprintf(reason, 256, "arguments are checked at the door for this backend");
        return 0;
    }
    return plugin_offers(&testee->plugin, &test->config, test->op, test->call.n_tokens,
                         reason) &&
           testee_knows_arguments(&base->about, test, reason);
}

static int table_frame(slm_testee *base, const vec_case *test,
                       const frame_options *layout, call_frame *frame, char *why)
{
    const table_testee *testee = (const table_testee *)base;
    frame_options options = layout ? *layout : (frame_options){0};

    options.golden = false;
    options.arena_fd = -1;
    options.unguarded = testee->trusted;
    if (!testee_is_for_the_door(test))
        options.workspace_size =
            plugin_ask_workspace(&testee->plugin, &test->config, test->op, &test->call);
    return frame_build_as(frame, test, &options, why);
}

static void table_begin(slm_testee *base, call_frame *frame, testee_reply *reply)
{
    table_testee *testee = (table_testee *)base;

    memset(reply, 0, sizeof *reply);
    reply->status = testee_door(&base->about, frame, &reply->error);
    if (reply->status == SLM_OK)
        reply->status = plugin_begin(&testee->plugin, &frame->config, frame->info->op,
                                     &frame->weights, &testee->session, &reply->error);
}

static void table_call(slm_testee *base, call_frame *frame, testee_beside beside,
                       testee_reply *reply)
{
    const table_testee *testee = (const table_testee *)base;
    plugin_conduct conduct;
    const double start = stopwatch_now();

    memset(reply, 0, sizeof *reply);
    reply->status = testee_door(&base->about, frame, &reply->error);
    if (reply->status != SLM_OK) return;
    if (beside == TESTEE_AFTER_NEIGHBOUR)
        plugin_neighbour_call(testee->neighbour, frame->info->op, frame->args);
    if (beside == TESTEE_WITH_NEIGHBOUR)
        plugin_neighbour_work(testee->neighbour, frame->info->op, frame->args);
    reply->status = plugin_call(&testee->plugin, &testee->session, frame->info->op,
                                frame->args, &reply->error, &conduct);
    plugin_neighbour_rest(testee->neighbour);
    reply->seconds = stopwatch_now() - start;
    if (!conduct.broken[0] && !conduct.environment) return;
    reply->outcome = TESTEE_BROKEN;
    snprintf(reply->why, sizeof reply->why, "%s",
             conduct.broken[0] ? conduct.broken : TESTEE_ENVIRONMENT);
}

static void table_end(slm_testee *base, call_frame *frame, testee_reply *reply)
{
    table_testee *testee = (table_testee *)base;

    (void)frame;
    memset(reply, 0, sizeof *reply);
    plugin_end(&testee->plugin, &testee->session);
}

static void table_neighbour(slm_testee *base, call_frame *frame, bool open,
                            testee_reply *reply)
{
    table_testee *testee = (table_testee *)base;

    memset(reply, 0, sizeof *reply);
    if (open) {
        reply->status = plugin_neighbour_open(
            &testee->plugin, &frame->config, frame->info->op, frame->call->n_tokens,
            &frame->weights, &testee->neighbour, &reply->error);
    } else {
        plugin_neighbour_close(testee->neighbour);
        testee->neighbour = NULL;
    }
}

static const testee_kind table_kind = {table_close,    table_offers, table_frame,
                                       table_begin,    table_call,   table_end,
                                       table_neighbour};

slm_testee *testee_open_table(const slm_backend *table, bool trusted)
{
    table_testee *testee = calloc(1, sizeof *testee);
    char why[PLUGIN_WHY];

    if (!testee) return NULL;
    if (!plugin_adopt(&testee->plugin, table, table->name, why)) {
        free(testee);
        return NULL;
    }

    testee_about *about = &testee->base.about;

    testee->base.kind = &table_kind;
    testee->trusted = trusted;
    snprintf(about->name, sizeof about->name, "%s", table->name);
    snprintf(about->version, sizeof about->version, "%s", table->version);
    snprintf(about->url, sizeof about->url, "%s", table->url ? table->url : "");
    about->abi_major = table->abi_major;
    about->abi_minor = table->abi_minor;
    about->flags = table->flags;
    about->levels = table->levels;
    about->neighbours = true;
    about->offered = plugin_offered(&testee->plugin);
    about->arithmetic = testee->plugin.arithmetic;
    return &testee->base;
}
