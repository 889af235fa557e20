#include "request.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct site *site;
static struct options option, environment;

static void refuse(const char *source, const char *message, const char *consequence)
{
	char text[MESSAGE_MAX + 128];

	snprintf(text, sizeof text, "%s: %s%s", source, message, consequence);
	complain(text);
}

/* Ends the command, before it has submitted or started anything. */
static void print_help(void)
{
	static const struct options nothing;
	const struct options *sources[] = { &site->defaults };
	char text[4096], defaults[OPTIONS_MAX];

	options_merge(sources, 1, defaults);
	options_help(text, sizeof text, memcmp(&site->defaults, &nothing, sizeof nothing) ? defaults : NULL);
	fputs(text, stdout);
	exit(EXIT_SUCCESS);
}

/* Called for each place that gives the option, weakest first; as with Slurm's own options the last one counts alone. */
static int take_option(int value, const char *argument, int remote)
{
	char message[MESSAGE_MAX];

	(void)value;
	if (remote)
		return ESPANK_SUCCESS;
	switch (options_parse(&option, argument, message)) {
	case PARSE_OK:
		return ESPANK_SUCCESS;
	case PARSE_HELP:
		print_help();
		return ESPANK_SUCCESS;
	default:
		refuse("--" OPTION_NAME, message, "");
		return -1;
	}
}

void request_register(spank_t spank, const struct site *site_arguments)
{
	static struct spank_option row = {
		.name = OPTION_NAME,
		.arginfo = "MODE,...",
		.usage = "watch NCCL for hangs: off, observe, cancel or requeue, and KEY=VALUE (=help lists them)",
		.has_arg = 2,
		.cb = take_option,
	};

	site = site_arguments;
	if (spank_option_register(spank, &row) != ESPANK_SUCCESS)
		whisper("the option could not be registered");
}

/* Whether the command that runs us still stands before its job. */
static bool is_submission(void)
{
	return spank_context() == S_CTX_ALLOCATOR || !getenv("SLURM_JOB_ID");
}

/* Returns false when the variable is wrong and the command goes on all the same. */
static bool take_environment(void)
{
	const char *text = getenv(OPTION_ENVIRONMENT);
	char message[MESSAGE_MAX];
	enum parse_result result;

	if (!text || !*text)
		return true;
	result = options_parse(&environment, text, message);
	if (result == PARSE_OK)
		return true;
	if (result == PARSE_HELP) {
		memset(&environment, 0, sizeof environment);
		snprintf(message, sizeof message, "help is for the option (write --" OPTION_NAME "=help)");
	}
	refuse(OPTION_ENVIRONMENT, message, is_submission() ? "" : option.given ? "; ignored" : "; this step is not watched");
	if (is_submission())
		exit(EXIT_FAILURE);
	return false;
}

void request_settle(struct request *request)
{
	const struct options *sources[] = { &site->defaults, &environment, &option };

	memset(request, 0, sizeof *request);
	if (getenv(MONITOR_ENVIRONMENT))
		return;
	if (!take_environment() && !option.given)
		return;
	request->watch = options_merge(sources, 3, request->effective);
	request->asked = environment.given || option.given;
}
