#include "site.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "number.h"

#ifndef PREFIX
#error "PREFIX must name the installation folder"
#endif

static void complain_about(void (*complain)(const char *), const char *argument, const char *problem)
{
	char message[MESSAGE_MAX];

	snprintf(message, sizeof message, "plugstack.conf: %.150s: %.300s", argument, problem);
	complain(message);
}

/* The value of `argument` when it is written KEY=VALUE with this key, else NULL. */
static const char *value_of(const char *argument, const char *key)
{
	size_t length = strlen(key);

	return !strncmp(argument, key, length) && argument[length] == '=' ? argument + length + 1 : NULL;
}

/* Returns the problem, or NULL. Keys without a mode are defaults for those who ask; a mode switches on for everyone. */
static const char *take_defaults(struct site *site, const char *value)
{
	static char message[MESSAGE_MAX];

	switch (options_parse(&site->defaults, value, message)) {
	case PARSE_OK:
		site->defaults.given = site->defaults.mode != MODE_UNSET;
		return NULL;
	case PARSE_HELP:
		memset(&site->defaults, 0, sizeof site->defaults);
		return "help is for users";
	default:
		return message;
	}
}

static const char *take_delay(struct site *site, const char *value)
{
	char *unit;
	double number = strtod(value, &unit);
	double milliseconds = !strcmp(unit, "ms") ? number : number * 1000;

	if (unit == value || (strcmp(unit, "ms") && strcmp(unit, "s") && *unit) || !(milliseconds >= 0) ||
	    milliseconds > 3600 * 1000)
		return "not a time from 0 to one hour (write delay=1s)";
	site->delay_ms = (int)milliseconds;
	return NULL;
}

static const char *take_path(const char **path, const char *value)
{
	if (*value != '/')
		return "not an absolute path";
	if (strlen(value) >= PATH_MAX)
		return "too long a path";
	*path = value;
	return NULL;
}

static const char *take_argument(struct site *site, const char *argument)
{
	const char *value;

	if ((value = value_of(argument, "default")))
		return take_defaults(site, value);
	if ((value = value_of(argument, "delay")))
		return take_delay(site, value);
	if ((value = value_of(argument, "min_tasks")))
		return read_u32(value, &site->min_tasks) ? NULL : "not a number";
	if ((value = value_of(argument, "ncclmon")))
		return take_path(&site->ncclmon, value);
	if ((value = value_of(argument, "srun")))
		return take_path(&site->srun, value);
	if ((value = value_of(argument, "probe_plugin")))
		return take_path(&site->probe_plugin, value);
	if ((value = value_of(argument, "config")))
		return take_path(&site->config, value);
	return "unknown (known: default, delay, min_tasks, ncclmon, srun, probe_plugin, config)";
}

void site_parse(struct site *site, int count, char *const arguments[], void (*complain)(const char *))
{
	const char *problem;
	int i;

	*site = (struct site){
		.ncclmon = PREFIX "/venv/bin/ncclmon",
		.probe_plugin = PREFIX "/lib/ncclmon/libnccl-profiler-ncclmon.so",
		.min_tasks = 1,
		.delay_ms = 1000,
	};
	for (i = 0; i < count; i++)
		if ((problem = take_argument(site, arguments[i])))
			complain_about(complain, arguments[i], problem);
}
