/* adapters/local/exec_body.c: from the fields of an exec step to what execve() wants. */
#include "adapters/local/impl.h"
#include "adapters/local/workspace.h"
#include "adapters/trace.h"
#include "base/json.h"

enum {
    ENV_COUNT_MAX = 4096, /* of a step; a program sees at most a quarter of its stack of them */
    ENV_OURS_MAX = 16,    /* base_env, TRACEPARENT and CAIRN_* */
};
static const char path_default[] = "PATH=/usr/local/bin:/usr/bin:/bin";

char **exec_base_env(struct arena *arena) {
    static const char *const names[] = {"PATH", "HOME", "LANG", "TZ", "USER"};
    char **env = arena_try(arena, (COUNT_OF(names) + 1) * sizeof *env);
    if (!env) return NULL;
    size_t count = 0;
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        const char *value = getenv(names[i]);
        if (!value && i > 0) continue;
        size_t size = strlen(names[i]) + (value ? strlen(value) : sizeof path_default) + 2;
        char *text = arena_try(arena, size);
        if (!text) return NULL;
        if (value)
            snprintf(text, size, "%s=%s", names[i], value);
        else
            snprintf(text, size, "%s", path_default);
        env[count++] = text;
    }
    return env;
}

/* ---- the environment ---- */

struct env {
    struct job *job;
    char **items;
    size_t count;
    size_t base; /* the first ones, that a step may replace */
    size_t ours; /* and those that it may not */
};

static bool env_put(struct env *env, size_t at, str name, str value) {
    char *text = arena_try_raw(&env->job->arena, name.len + value.len + 2);
    if (!text) {
        job_fail(env->job, REASON_SPAWN_FAILED, "could not start: out of memory");
        return false;
    }
    memcpy(text, name.ptr, name.len);
    text[name.len] = '=';
    if (value.len > 0) memcpy(text + name.len + 1, value.ptr, value.len);
    text[name.len + 1 + value.len] = '\0';
    env->items[at] = text;
    if (at == env->count) env->count++;
    return true;
}

/* Index of the variable among the first `count`, or `count`. */
static size_t env_find(const struct env *env, str name, size_t count) {
    for (size_t i = 0; i < count; i++) {
        str item = str_c(env->items[i]);
        if (item.len > name.len && item.ptr[name.len] == '=' && str_starts(item, name)) return i;
    }
    return count;
}

static bool env_put_trace(struct env *env) {
    const struct attempt *a = env->job->attempt;
    char text[TRACE_PARENT_LEN];
    if (!trace_parent(a->correlation, a->run_id, a->step->id, a->number, text)) return true;
    return env_put(env, env->count, STR("TRACEPARENT"), str_n(text, sizeof text));
}

static bool env_put_ours(struct env *env, const char *workspace) {
    const struct attempt *a = env->job->attempt;
    char number[32];
    struct buf key;
    struct buf n;
    buf_init_fixed(&n, number, sizeof number);
    buf_put_int(&n, a->number);
    buf_init(&key, a->run_id.len + a->step->id.len + sizeof number + 2);
    buf_put(&key, a->run_id);
    buf_put_char(&key, '/');
    buf_put(&key, a->step->id);
    buf_put_char(&key, '/');
    buf_put_int(&key, a->number);
    const struct {
        str name, value;
    } all[] = {
        {STR("CAIRN_ENGINE"), str_c(env->job->ex->engine)},
        {STR("CAIRN_WORKSPACE"), str_c(workspace)},
        {STR("CAIRN_RUN_ID"), a->run_id},
        {STR("CAIRN_STEP_ID"), a->step->id},
        {STR("CAIRN_ATTEMPT"), buf_str(&n)},
        {STR("CAIRN_TENANT_ID"), a->tenant_id},
        {STR("CAIRN_PROJECT_ID"), a->project_id},
        {STR("CAIRN_ENVIRONMENT_ID"), a->environment_id},
        {STR("CAIRN_IDEMPOTENCY_KEY"), buf_str(&key)},
    };
    bool ok = true;
    for (size_t i = 0; ok && i < COUNT_OF(all); i++)
        ok = env_put(env, env->count, all[i].name, all[i].value);
    buf_release(&key);
    return ok;
}

static bool env_put_step(struct env *env, str name, yyjson_val *val) {
    struct job *job = env->job;
    if (name.len == 0 || str_has(name, '=')) {
        job_fail(job, REASON_INVALID_STEP_SCHEMA, "env: \"%.*s\" cannot name a variable",
                 STR_ARG(name));
        return false;
    }
    size_t at = env_find(env, name, env->ours);
    if (at >= env->base && at < env->ours) {
        job_fail(job, REASON_INVALID_STEP_SCHEMA, "env: %.*s is set by Cairn", STR_ARG(name));
        return false;
    }
    str value;
    if (!job_value(job, val, "env", &value)) return false;
    if (str_has(value, '\0')) {
        job_fail(job, REASON_SECRET_INVALID, "env: the secret for %.*s has a NUL byte",
                 STR_ARG(name));
        return false;
    }
    return env_put(env, at < env->base ? at : env->count, name, value);
}

static bool env_make(struct job *job, yyjson_val *step_env, const char *workspace) {
    size_t n = yyjson_obj_size(step_env);
    if (n > ENV_COUNT_MAX || (step_env && !yyjson_is_obj(step_env))) {
        job_fail(job, REASON_INVALID_STEP_SCHEMA, "env: expected an object of at most %d members",
                 ENV_COUNT_MAX);
        return false;
    }
    struct env env = {.job = job};
    env.items = arena_try(&job->arena, (n + ENV_OURS_MAX + 1) * sizeof *env.items);
    if (!env.items) {
        job_fail(job, REASON_SPAWN_FAILED, "could not start: out of memory");
        return false;
    }
    while (job->ex->base_env[env.count]) {
        env.items[env.count] = job->ex->base_env[env.count];
        env.count++;
    }
    if (!env_put_trace(&env)) return false;
    env.base = env.count;
    if (!env_put_ours(&env, workspace)) return false;
    env.ours = env.count;
    ASSERT(env.ours <= ENV_OURS_MAX);
    size_t i;
    size_t count;
    yyjson_val *key;
    yyjson_val *val;
    yyjson_obj_foreach(step_env, i, count, key, val) {
        if (!env_put_step(&env, str_n(yyjson_get_str(key), yyjson_get_len(key)), val)) return false;
    }
    job->spawn.envp = env.items;
    size_t path = env_find(&env, STR("PATH"), env.base);
    ASSERT(path < env.base);
    job->spawn.path = env.items[path] + strlen("PATH=");
    return true;
}

/* ---- the command, the folder, the input ---- */

/* execve() wants char *, and changes nothing. */
static char *unconst(const char *text) {
    union {
        const char *from;
        char *to;
    } both = {text};
    return both.to;
}

static bool command_make(struct job *job, yyjson_val *command) {
    size_t n = yyjson_is_str(command) ? 3 : yyjson_arr_size(command);
    char **argv = arena_try(&job->arena, (n + 1) * sizeof *argv);
    if (!argv) {
        job_fail(job, REASON_SPAWN_FAILED, "could not start: out of memory");
        return false;
    }
    job->spawn.argv = argv;
    if (yyjson_is_str(command)) {
        argv[0] = "/bin/sh";
        argv[1] = "-c";
        argv[2] = unconst(yyjson_get_str(command));
        return true;
    }
    size_t i;
    size_t count;
    yyjson_val *word;
    yyjson_arr_foreach(command, i, count, word) {
        argv[i] = unconst(yyjson_get_str(word));
        if (!argv[i]) break;
    }
    if (n == 0 || !argv[n - 1] || argv[0][0] == '\0') {
        job_fail(job, REASON_INVALID_STEP_SCHEMA,
                 "command: expected a string or a non-empty array of strings");
        return false;
    }
    return true;
}

/* The workspace, or a folder in it, or wherever an absolute path leads. */
static bool folder_make(struct job *job, yyjson_val *cwd) {
    struct buf path;
    buf_init(&path, 4096);
    local_workspace_path(job->ex->data_dir, job->attempt->run_id, &path);
    str text = STR("");
    str workspace = STR_NONE;
    str folder = STR_NONE;
    bool ok = arena_try_str(&job->arena, buf_str(&path), &workspace);
    if (cwd && !json_str(cwd, &text)) {
        job_fail(job, REASON_INVALID_STEP_SCHEMA, "cwd: expected a string");
        ok = false;
    } else if (text.len > 0 && text.ptr[0] == '/') {
        buf_clear(&path);
        buf_put(&path, text);
    } else if (!path_stays_inside(text)) {
        job_fail(job, REASON_CWD_OUTSIDE, "cwd: \"%.*s\" leads out of the run's workspace",
                 STR_ARG(text));
        ok = false;
    } else if (text.len > 0) {
        buf_put_char(&path, '/');
        buf_put(&path, text);
    }
    ok = ok && !path.full && arena_try_str(&job->arena, buf_str(&path), &folder);
    if (!ok && !job->code) job_fail(job, REASON_SPAWN_FAILED, "could not start: cwd is too long");
    buf_release(&path);
    job->spawn.workspace = workspace.ptr;
    job->spawn.workspace_run =
        path_part_safe(job->attempt->run_id) ? STR_NONE : job->attempt->run_id;
    job->spawn.cwd = folder.ptr;
    return ok;
}

static bool input_make(struct job *job, yyjson_val *input) {
    job->spawn.input = STR_NONE;
    return !input || job_value(job, input, "stdin", &job->spawn.input);
}

static bool captures_make(struct job *job) {
    struct executor *ex = job->ex;
    const struct attempt *a = job->attempt;
    str paths[2] = {STR_NONE, STR_NONE};
    struct buf path;
    buf_init(&path, 8192);
    bool ok = true;
    for (int i = 0; ok && i < 2; i++) {
        buf_clear(&path);
        local_log_path(ex->data_dir, a->run_id, a->step->id, a->number, i == 1, &path);
        ok = !path.full && arena_try_str(&job->arena, buf_str(&path), &paths[i]);
    }
    buf_release(&path);
    /* one byte more than counts, for the newline at the end of a text */
    size_t keep = a->step->output == PLAN_OUTPUT_NONE ? 0 : ex->output_max + 1;
    ok =
        ok && capture_init(&job->out, &job->mask, paths[0].ptr, ex->log_max, keep, false) &&
        capture_init(&job->err, &job->mask, paths[1].ptr, ex->log_max, LOCAL_STDERR_TAIL_MAX, true);
    if (!ok) job_fail(job, REASON_SPAWN_FAILED, "could not start: out of memory");
    return ok;
}

bool exec_prepare(struct job *job) {
    yyjson_val *body;
    if (!job_body(job, &body)) return false;
    job->spawn.no_pidfd = job->ex->no_pidfd;
    job->spawn.owner = job;
    return command_make(job, json_member(body, "command")) &&
           folder_make(job, json_member(body, "cwd")) &&
           env_make(job, json_member(body, "env"), job->spawn.workspace) &&
           input_make(job, json_member(body, "stdin")) && captures_make(job);
}
