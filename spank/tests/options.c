#include "../options.h"

#include <stdlib.h>

#include "check.h"

static struct options options;
static char message[MESSAGE_MAX];

static const char *error_of(const char *text)
{
	CHECK(options_parse(&options, text, message) == PARSE_ERROR);
	CHECK(!options.given && options.mode == MODE_UNSET);
	return message;
}

static void test_valid(void)
{
	static const char *const nothing[] = { NULL, "", "(null)", ",", "," };
	size_t i;

	for (i = 0; i < sizeof nothing / sizeof nothing[0]; i++) {
		CHECK(options_parse(&options, nothing[i], message) == PARSE_OK);
		CHECK(options.given && options.mode == MODE_UNSET && !options.value[KEY_confirm]);
	}
	CHECK(options_parse(&options, "cancel,confirm=15s,dir=a b=c,ras=[::1]:28028,interval=500ms", message) == PARSE_OK);
	CHECK(options.mode == MODE_cancel);
	CHECK_TEXT(options_value(&options, KEY_confirm), "15s");
	CHECK_TEXT(options_value(&options, KEY_dir), "a b=c");
	CHECK_TEXT(options_value(&options, KEY_ras), "[::1]:28028");
	CHECK_TEXT(options_value(&options, KEY_suspect), "60s");
	CHECK(options_parse(&options, "confirm=1.5h,off", message) == PARSE_OK && options.mode == MODE_off);
	CHECK(options_parse(&options, "cancel,help", message) == PARSE_HELP);
}

static void test_messages(void)
{
	CHECK_TEXT(error_of("confirm=15x"), "confirm: '15x' is not a duration (write 15s, 5m or 1h)");
	CHECK_TEXT(error_of("confirm="), "confirm: '' is not a duration (write 15s, 5m or 1h)");
	CHECK_TEXT(error_of("confirm=-1s"), "confirm: '-1s' is not a duration (write 15s, 5m or 1h)");
	CHECK_TEXT(error_of("confirm=1.s"), "confirm: '1.s' is not a duration (write 15s, 5m or 1h)");
	CHECK_TEXT(error_of("interval=0.0s"), "interval: '0.0s' must be more than nothing (write 15s, 5m or 1h)");
	CHECK_TEXT(error_of("confrim=15s"), "unknown key 'confrim'; did you mean 'confirm'? (known: confirm, suspect, remind, "
					    "interval, dir, ras, probe, stacks, keep)");
	CHECK_TEXT(error_of("=1"), "unknown key '' (known: confirm, suspect, remind, interval, dir, ras, probe, stacks, keep)");
	CHECK_TEXT(error_of("cancle"), "'cancle' is neither a mode (off, observe, cancel, requeue) nor key=value; did you mean "
				       "'cancel'?");
	CHECK_TEXT(error_of("warn"), "'warn' is neither a mode (off, observe, cancel, requeue) nor key=value");
	CHECK_TEXT(error_of("confirm"), "'confirm' is neither a mode (off, observe, cancel, requeue) nor key=value; did you "
					"mean 'confirm'?");
	CHECK_TEXT(error_of("observe,cancel"), "both 'observe' and 'cancel': name one mode");
	CHECK_TEXT(error_of("confirm=1m,confirm=2m"), "confirm is given twice");
	CHECK_TEXT(error_of("probe=yes"), "probe: 'yes' is not one of on, off, auto");
	CHECK_TEXT(error_of("ras=ADDR:PORT"), "ras: 'ADDR:PORT' is not one of on, off, ADDR:PORT");
	CHECK_TEXT(error_of("ras=host:70000"), "ras: 'host:70000' is not one of on, off, ADDR:PORT");
	CHECK_TEXT(error_of("stacks="), "stacks: '' is not one of on, off");
	CHECK_TEXT(error_of("dir="), "dir: needs a value of at most 1023 characters (write dir=reports)");
	CHECK_TEXT(error_of("dir=a\nb"), "holds a control character");
}

static void test_lengths(void)
{
	char text[2 * OPTIONS_MAX];

	memset(text, 'x', sizeof text);
	text[sizeof text - 1] = '\0';
	CHECK_TEXT(error_of(text), "longer than 2047 characters");
	text[OPTIONS_MAX - 1] = '\0';
	error_of(text);
	memcpy(text, "dir=", 4);
	error_of(text);
	text[4 + PATH_VALUE_MAX - 1] = '\0';
	CHECK(options_parse(&options, text, message) == PARSE_OK);
}

static void test_help(void)
{
	char text[4096];

	options_help(text, sizeof text, "observe,confirm=5m");
	CHECK(strlen(text) < sizeof text - 256);
	CHECK(strstr(text, "  confirm=TIME ") && strstr(text, "  requeue ") && strstr(text, "defaults: observe,confirm=5m\n"));
	options_help(text, 16, NULL);
	CHECK(strlen(text) == 15);
}

void test_options(void)
{
	test_valid();
	test_messages();
	test_lengths();
	test_help();
}

/* Merges site, environment and option; NULL stands for a source that says nothing. */
static bool merge(const char *site, const char *environment, const char *option, char effective[OPTIONS_MAX])
{
	static struct options parsed[3];
	const struct options *sources[] = { &parsed[0], &parsed[1], &parsed[2] };
	const char *texts[] = { site, environment, option };
	size_t i;

	for (i = 0; i < 3; i++) {
		memset(&parsed[i], 0, sizeof parsed[i]);
		if (texts[i])
			CHECK(options_parse(&parsed[i], texts[i], message) == PARSE_OK);
	}
	return options_merge(sources, 3, effective);
}

void test_merge(void)
{
	char effective[OPTIONS_MAX];

	CHECK(!merge(NULL, NULL, NULL, effective));
	CHECK(merge(NULL, NULL, "", effective));
	CHECK_TEXT(effective, "observe");
	CHECK(merge("observe,confirm=5m,interval=10s", "cancel,confirm=1m", "confirm=15s", effective));
	CHECK_TEXT(effective, "cancel,confirm=15s,interval=10s");
	CHECK(!merge("cancel", NULL, "off", effective));
	CHECK(!merge("cancel", "off", NULL, effective));
	CHECK(merge("cancel", "off", "", effective));
	CHECK_TEXT(effective, "observe");
	CHECK(merge("cancel", NULL, "", effective));
	CHECK_TEXT(effective, "cancel");
}

/* Whatever the words, three accepted sources always merge into text that is accepted and merges into itself. */
void test_random_options(void)
{
	static const char *const words[] = { "off", "cancel", "requeue", "confirm=5m", "suspect=1.5h", "interval=20ms", "dir=",
					     "ras=off", "ras=a:1", "probe=auto", "x", "=", ",", "keep=findings", "dir=/tmp/%s" };
	static struct options parsed[3], merged;
	const struct options *sources[] = { &parsed[0], &parsed[1], &parsed[2] }, *again[] = { &merged };
	char text[OPTIONS_MAX], first[OPTIONS_MAX], second[OPTIONS_MAX];
	int round, i, j;

	srand(1);
	for (round = 0; round < 20000; round++) {
		for (i = 0; i < 3; i++) {
			text[0] = '\0';
			for (j = rand() % 5; j > 0; j--) {
				strcat(text, words[(size_t)rand() % (sizeof words / sizeof words[0])]);
				strcat(text, rand() % 8 ? "," : "");
			}
			if (options_parse(&parsed[i], text, message) == PARSE_ERROR)
				CHECK(message[0]);
		}
		options_merge(sources, 3, first);
		CHECK(options_parse(&merged, first, message) == PARSE_OK);
		options_merge(again, 1, second);
		CHECK_TEXT(second, first);
	}
}
