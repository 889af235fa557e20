/* The command line and the environment of the monitor step. */
#include <inttypes.h>
#include <libgen.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../common.h"
#include "step.h"

/* A growing NULL-terminated list of strings; `failed` stays true once memory was short. */
struct list {
	char **items;
	size_t count, room;
	bool failed;
};

static void add(struct list *list, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void add(struct list *list, const char *format, ...)
{
	va_list arguments;
	char *item = NULL, **larger;
	int length;

	va_start(arguments, format);
	length = vasprintf(&item, format, arguments);
	va_end(arguments);
	if (length < 0) {
		list->failed = true;
		return;
	}
	if (list->count + 2 > list->room) {
		larger = realloc(list->items, (list->room + 32) * sizeof *larger);
		if (!larger) {
			free(item);
			list->failed = true;
			return;
		}
		list->items = larger;
		list->room += 32;
	}
	list->items[list->count++] = item;
	list->items[list->count] = NULL;
}

static char **finish(struct list *list)
{
	return list->failed ? NULL : list->items;
}

/* Runs what follows. Its exit code goes into the job's records, so only the one that says "cancelled" passes: a monitor
 * that is broken or missing is no failure of the job's. A shell waits for what it runs, even through a SIGTERM, which
 * that gets as well. */
static const char wrapper[] = "trap : TERM; \"$@\"; code=$?; [ $code = 0 ] && exit 0; [ $code = 86 ] && exit 86; "
			      "echo \"ncclmon: the monitor ended with exit code $code\" >&2; exit 0";

/* One task beside those of the step: it shares their CPUs, asks for no memory and no GPU of its own, loads no MPI, and
 * nothing that happens to it ends anything else. */
char **monitor_command(const struct step *step)
{
	struct list list = { 0 };

	add(&list, "%s", step->srun);
	add(&list, "--jobid=%" PRIu32, step->job);
	if (step->group >= 0)
		add(&list, "--het-group=%d", step->group);
	add(&list, "--overlap");
	add(&list, "--nodes=1");
	add(&list, "--ntasks=1");
	add(&list, "--nodelist=%s", step->node);
	add(&list, "--mem=0");
	add(&list, "--gres=none");
	add(&list, "--cpu-bind=none");
	add(&list, "--mpi=none");
	add(&list, "--kill-on-bad-exit=0");
	add(&list, "--wait=0");
	add(&list, "--quiet");
	add(&list, "--job-name=ncclmon");
	add(&list, "/bin/sh");
	add(&list, "-c");
	add(&list, "%s", wrapper);
	add(&list, "ncclmon"); /* the shell's name for itself in its messages */
	add(&list, "%s", step->ncclmon);
	add(&list, "monitor");
	add(&list, "%" PRIu32 ".%" PRIu32, step->job, step->step);
	add(&list, "--options");
	add(&list, "%s", step->options);
	return finish(&list);
}

/* srun reads some hundred variables, and the job's own are meant for the job's own steps. So only these pass. */
static bool passes(const char *variable)
{
	static const char *const names[] = { "HOME", "USER", "LOGNAME", "SHELL", "TERM", "LANG", "LANGUAGE", "TZ",
					     "TMPDIR", "TMP", "TEMP", "KRB5CCNAME", "SLURM_CONF", "SLURM_JWT" };
	static const char *const prefixes[] = { "LC_", "NCCLMON_" };
	size_t length = strcspn(variable, "="), i;

	if (!variable[length])
		return false;
	for (i = 0; i < sizeof names / sizeof names[0]; i++)
		if (length == strlen(names[i]) && !strncmp(variable, names[i], length))
			return true;
	for (i = 0; i < sizeof prefixes / sizeof prefixes[0]; i++)
		if (!strncmp(variable, prefixes[i], strlen(prefixes[i])))
			return true;
	return false;
}

static const char *value_of(char *const environment[], const char *name)
{
	size_t length = strlen(name);

	for (; *environment; environment++)
		if (!strncmp(*environment, name, length) && (*environment)[length] == '=')
			return *environment + length + 1;
	return NULL;
}

static bool is_set(const struct list *list, const char *variable)
{
	size_t length = strcspn(variable, "=") + 1, i;

	for (i = 0; i < list->count; i++)
		if (!strncmp(list->items[i], variable, length))
			return true;
	return false;
}

/* The monitor calls Slurm's commands by name: they lie beside srun, wherever that is. */
static void add_path(struct list *list, const struct step *step, char *const environment[])
{
	const char *path = value_of(environment, "PATH");
	char *srun = strdup(step->srun);

	if (!path || !*path)
		path = "/usr/local/bin:/usr/bin:/bin";
	if (srun && *srun == '/')
		add(list, "PATH=%s:%s", path, dirname(srun));
	else
		add(list, "PATH=%s", path);
	free(srun);
}

char **monitor_environment(const struct step *step, char *const environment[])
{
	struct list list = { 0 };
	char *const *variable;

	/* Twice guarded: nothing below the monitor is watched again. */
	add(&list, MONITOR_ENVIRONMENT "=1");
	add(&list, OPTION_ENVIRONMENT "=off");
	add(&list, "NCCLMON_REPORT_DIR=%s", step->folder);
	if (step->config)
		add(&list, "NCCLMON_CONFIG=%s", step->config);
	add_path(&list, step, environment);
	for (variable = environment; *variable; variable++)
		if (passes(*variable) && !is_set(&list, *variable))
			add(&list, "%s", *variable);
	return finish(&list);
}
