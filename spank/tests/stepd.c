#include <slurm/slurm.h>
#include <stdlib.h>

#include "../contexts.h"
#include "../options.h"
#include "check.h"
#include "fake_spank.h"

static void before_tasks(const char *site)
{
	char *arguments[] = { (char *)site };

	stepd_init(NULL, site ? 1 : 0, arguments);
	stepd_before_tasks(NULL);
}

static void expect_ras(const char *option, bool expected)
{
	fake_setenv(OPTION_ENVIRONMENT, option);
	before_tasks(NULL);
	CHECK(!fake_getenv("NCCL_RAS_ADDR") == !expected);
	CHECK(!fake_getenv("NCCL_PROFILER_PLUGIN"));
	fake_reset();
}

static void test_who_gets_an_address(void)
{
	static const uint32_t others[] = { SLURM_BATCH_SCRIPT, SLURM_EXTERN_CONT, SLURM_INTERACTIVE_STEP };
	size_t i;

	fake_reset();
	expect_ras("observe,probe=off", true);
	expect_ras("cancel,ras=off,probe=off", false);
	expect_ras("cancel,ras=localhost:5,probe=off", false);
	expect_ras("off", false);
	expect_ras("", false);
	expect_ras("nonsense", false);
	fake_setenv("NCCLMON_IS_MONITOR", "1");
	expect_ras("observe,probe=off", false);
	for (i = 0; i < sizeof others / sizeof others[0]; i++) {
		fake_step = others[i];
		expect_ras("observe,probe=off", false);
	}
	before_tasks("default=observe"); /* srun has the last word, and it did not say so */
	CHECK(!fake_getenv("NCCL_RAS_ADDR"));
}

/* What a user may write into the environment of the own job, read inside a root process. */
static void test_hostile_environment(void)
{
	static const char *const jobs[] = { "", "-1", "99999999999", "12x", "%n%n%n", "\xff\xfe" };
	char *huge = malloc(1 << 20);
	size_t i;

	CHECK(huge);
	memset(huge, ',', 1 << 20);
	huge[(1 << 20) - 1] = '\0';
	fake_reset();
	expect_ras(huge, false);
	huge[2000] = '\0';
	for (i = 0; i < sizeof jobs / sizeof jobs[0]; i++) {
		fake_setenv("SLURM_JOB_ID", jobs[i]);
		fake_setenv("SLURM_CLUSTER_NAME", huge);
		expect_ras("observe,probe=off,dir=%s%n", true);
	}
	free(huge);
}

static void test_own_variables_survive(void)
{
	fake_reset();
	fake_setenv(OPTION_ENVIRONMENT, "observe,probe=on");
	fake_setenv("NCCL_RAS_ADDR", "mine:1");
	fake_setenv("NCCL_PROFILER_PLUGIN", "");
	before_tasks(NULL);
	CHECK_TEXT(fake_getenv("NCCL_RAS_ADDR"), "mine:1");
	CHECK_TEXT(fake_getenv("NCCL_PROFILER_PLUGIN"), "");
	CHECK(!fake_getenv("NCCLMON_PROBE_DIR"));
}

static void test_leader_gives_the_address(void)
{
	char first[64];

	fake_reset();
	fake_setenv(OPTION_ENVIRONMENT, "observe");
	fake_setenv("SLURM_JOB_ID", "12");
	before_tasks(NULL);
	snprintf(first, sizeof first, "%s", fake_getenv("NCCL_RAS_ADDR"));
	fake_reset();
	fake_job = 13; /* another component */
	fake_setenv(OPTION_ENVIRONMENT, "observe");
	fake_setenv("SLURM_JOB_ID", "12");
	before_tasks(NULL);
	CHECK_TEXT(fake_getenv("NCCL_RAS_ADDR"), first);
}

/* The port of one task of a step that is watched so, 0 when its address is another than one of ours. */
static unsigned port_of_task(const char *option, uint32_t component, uint32_t task, const char *changed)
{
	unsigned port = 0;

	fake_reset();
	fake_setenv(OPTION_ENVIRONMENT, option);
	fake_setenv("SLURM_JOB_ID", "12");
	fake_job = component;
	fake_task = task;
	before_tasks(NULL);
	if (changed)
		fake_setenv("NCCL_RAS_ADDR", changed);
	stepd_in_task(NULL);
	if (fake_getenv("NCCL_RAS_ADDR"))
		sscanf(fake_getenv("NCCL_RAS_ADDR"), "localhost:%u", &port);
	return port;
}

static void test_each_task_has_a_port_of_its_own(void)
{
	unsigned first = port_of_task("observe", 12, 0, NULL), second = port_of_task("observe", 12, 1, NULL);

	CHECK(first >= 20000 && second >= 20000);
	CHECK(first != second);
	CHECK(port_of_task("observe", 12, 1, NULL) == second);
	CHECK(port_of_task("observe", 13, 0, NULL) != first); /* another component, whose tasks count from 0 too */
	CHECK(port_of_task("observe", 13, 1, NULL) != second);
	fake_reset();
	fake_setenv(OPTION_ENVIRONMENT, "observe");
	before_tasks(NULL);
	snprintf(fake_error, sizeof fake_error, "localhost:%u", first);
	CHECK_TEXT(fake_getenv("NCCL_RAS_ADDR"), fake_error); /* what stands for the whole step is the first task's */
}

static void test_tasks_keep_what_is_not_ours(void)
{
	CHECK(port_of_task("observe", 12, 1, "localhost:4711") == 4711); /* set in between, by another plugin */
	CHECK(!port_of_task("observe", 12, 1, ""));
	CHECK(!port_of_task("observe", 12, 1, "localhost:a-name-that-is-longer-than-any-of-ours"));
	CHECK(!port_of_task("observe,ras=off", 12, 1, NULL));
	CHECK(!port_of_task("observe,ras=localhost:5", 12, 1, NULL));
	CHECK(!port_of_task("off", 12, 1, NULL));
	fake_reset();
	fake_task = 1;
	fake_setenv(OPTION_ENVIRONMENT, "observe");
	fake_setenv("NCCL_RAS_ADDR", "localhost:4711");
	before_tasks(NULL);
	stepd_in_task(NULL);
	CHECK_TEXT(fake_getenv("NCCL_RAS_ADDR"), "localhost:4711");
}

static void expect_probe(const char *option, const char *site, bool expected)
{
	fake_reset();
	fake_setenv(OPTION_ENVIRONMENT, option);
	before_tasks(site);
	CHECK(!fake_getenv("NCCL_PROFILER_PLUGIN") == !expected);
	if (expected)
		CHECK_TEXT(fake_getenv("NCCLMON_PROBE_DIR"), "/dev/shm/ncclmon-1000-811c9dc5-12.3");
}

static void test_clusters_on_one_machine_do_not_share_a_folder(void)
{
	char first[80];

	expect_probe("observe", "probe_plugin=/etc/passwd", true);
	snprintf(first, sizeof first, "%s", fake_getenv("NCCLMON_PROBE_DIR"));
	fake_reset();
	fake_setenv(OPTION_ENVIRONMENT, "observe");
	fake_setenv("SLURM_CLUSTER_NAME", "../other");
	before_tasks("probe_plugin=/etc/passwd");
	CHECK(fake_getenv("NCCLMON_PROBE_DIR") && strcmp(fake_getenv("NCCLMON_PROBE_DIR"), first));
	CHECK(fake_getenv("NCCLMON_PROBE_DIR") && !strstr(fake_getenv("NCCLMON_PROBE_DIR"), ".."));
}

void test_stepd(void)
{
	fake_context = S_CTX_REMOTE;
	test_who_gets_an_address();
	test_hostile_environment();
	test_own_variables_survive();
	test_leader_gives_the_address();
	test_each_task_has_a_port_of_its_own();
	test_tasks_keep_what_is_not_ours();
	test_clusters_on_one_machine_do_not_share_a_folder();
	expect_probe("observe", "probe_plugin=/etc/passwd", true);
	expect_probe("observe", "probe_plugin=/no/such/file", false);
	expect_probe("observe,probe=on", "probe_plugin=/no/such/file", true);
	expect_probe("observe,probe=off", "probe_plugin=/etc/passwd", false);
}
