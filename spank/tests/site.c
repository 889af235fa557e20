#include "../site.h"

#include "check.h"

static struct site site;
static char complaint[MESSAGE_MAX];
static int complaints;

static void remember(const char *message)
{
	complaints++;
	snprintf(complaint, sizeof complaint, "%s", message);
}

static void parse(const char *argument)
{
	char *const arguments[] = { (char *)argument };

	complaints = 0;
	complaint[0] = '\0';
	site_parse(&site, argument ? 1 : 0, arguments, remember);
}

static void expect(const char *argument, const char *message)
{
	parse(argument);
	CHECK(complaints == 1);
	CHECK_TEXT(complaint, message);
	CHECK(!site.defaults.given && site.delay_ms == 1000 && site.min_tasks == 1 && !site.srun);
}

static void test_right(void)
{
	parse(NULL);
	CHECK(!complaints && !site.defaults.given && !site.config);
	CHECK(strstr(site.ncclmon, "/venv/bin/ncclmon"));
	parse("default=observe,confirm=5m");
	CHECK(!complaints && site.defaults.given);
	CHECK_TEXT(options_value(&site.defaults, KEY_confirm), "5m");
	parse("default=confirm=5m"); /* for those who ask, and nobody else */
	CHECK(!complaints && !site.defaults.given);
	CHECK_TEXT(options_value(&site.defaults, KEY_confirm), "5m");
	parse("delay=0");
	CHECK(!complaints && site.delay_ms == 0);
	parse("delay=250ms");
	CHECK(!complaints && site.delay_ms == 250);
	parse("delay=1.5s");
	CHECK(!complaints && site.delay_ms == 1500);
	parse("srun=/usr/bin/srun");
	CHECK(!complaints);
	CHECK_TEXT(site.srun, "/usr/bin/srun");
}

void test_site(void)
{
	test_right();
	expect("default=observe,confirm=5x", "plugstack.conf: default=observe,confirm=5x: confirm: '5x' is not a duration (write "
					     "15s, 5m or 1h)");
	expect("default=help", "plugstack.conf: default=help: help is for users");
	expect("delay=nan", "plugstack.conf: delay=nan: not a time from 0 to one hour (write delay=1s)");
	expect("delay=-1s", "plugstack.conf: delay=-1s: not a time from 0 to one hour (write delay=1s)");
	expect("delay=", "plugstack.conf: delay=: not a time from 0 to one hour (write delay=1s)");
	expect("delay=1h", "plugstack.conf: delay=1h: not a time from 0 to one hour (write delay=1s)");
	expect("min_tasks=-1", "plugstack.conf: min_tasks=-1: not a number");
	expect("min_tasks=4294967296", "plugstack.conf: min_tasks=4294967296: not a number");
	expect("srun=srun", "plugstack.conf: srun=srun: not an absolute path");
	expect("defaults=observe", "plugstack.conf: defaults=observe: unknown (known: default, delay, min_tasks, ncclmon, srun, "
				   "probe_plugin, config)");
}
