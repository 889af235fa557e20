#include "fake_spank.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

spank_context_t fake_context = S_CTX_REMOTE;
uint32_t fake_job, fake_step, fake_task;
char fake_error[1024];

#define VARIABLES 16
static struct {
	const char *name;
	char *value;
} task[VARIABLES];

void fake_reset(void)
{
	int i;

	for (i = 0; i < VARIABLES; i++) {
		free(task[i].value);
		task[i].name = task[i].value = NULL;
	}
	fake_job = 12;
	fake_step = 3;
	fake_task = 0;
	fake_error[0] = '\0';
}

const char *fake_getenv(const char *name)
{
	int i;

	for (i = 0; i < VARIABLES; i++)
		if (task[i].name && !strcmp(task[i].name, name))
			return task[i].value;
	return NULL;
}

void fake_setenv(const char *name, const char *value)
{
	int i;

	for (i = 0; i < VARIABLES; i++) {
		if (task[i].name && strcmp(task[i].name, name))
			continue;
		free(task[i].value);
		task[i].name = name;
		task[i].value = strdup(value);
		return;
	}
}

spank_context_t spank_context(void)
{
	return fake_context;
}

spank_err_t spank_option_register(spank_t spank, struct spank_option *option)
{
	(void)spank, (void)option;
	return ESPANK_SUCCESS;
}

spank_err_t spank_get_item(spank_t spank, spank_item_t item, ...)
{
	va_list arguments;
	uint32_t *number;

	(void)spank;
	va_start(arguments, item);
	number = va_arg(arguments, uint32_t *);
	va_end(arguments);
	*number = item == S_JOB_ID ? fake_job : item == S_JOB_STEPID ? fake_step : item == S_TASK_ID ? fake_task : 1000;
	return ESPANK_SUCCESS;
}

spank_err_t spank_getenv(spank_t spank, const char *name, char *value, int size)
{
	const char *found = fake_getenv(name);

	(void)spank;
	if (!found)
		return ESPANK_ENV_NOEXIST;
	snprintf(value, (size_t)size, "%s", found);
	return strlen(found) < (size_t)size ? ESPANK_SUCCESS : ESPANK_NOSPACE;
}

spank_err_t spank_setenv(spank_t spank, const char *name, const char *value, int overwrite)
{
	(void)spank;
	if (fake_getenv(name) && !overwrite)
		return ESPANK_ENV_EXISTS;
	fake_setenv(name, value);
	return ESPANK_SUCCESS;
}

static void keep(const char *format, va_list arguments)
{
	vsnprintf(fake_error, sizeof fake_error, format, arguments);
}

void slurm_error(const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	keep(format, arguments);
	va_end(arguments);
}

void slurm_verbose(const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	keep(format, arguments);
	va_end(arguments);
}
