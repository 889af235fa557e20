#include "../step/step.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

static char message[MESSAGE_MAX], here[PATH_MAX];

static struct step example(const char *options)
{
	struct step step = { .job = 12, .step = 3, .group = -1, .options = options, .srun = "/opt/slurm/bin/srun",
			     .ncclmon = "/opt/ncclmon", .node = "n1" };

	return step;
}

static void expect_folder(const char *options, const char *expected)
{
	struct step step = example(options);
	char path[2 * PATH_MAX];
	struct stat status;

	snprintf(path, sizeof path, "%s%s", *expected == '/' ? "" : here, expected);
	CHECK(make_folder(&step, message));
	CHECK_TEXT(step.folder, path);
	CHECK(!stat(path, &status) && S_ISDIR(status.st_mode));
}

static void expect_no_folder(const char *options, const char *part)
{
	struct step step = example(options);

	CHECK(!make_folder(&step, message));
	CHECK(strstr(message, part));
}

/* In a folder shared with others, somebody may have been there first. */
static void test_folder_of_others(void)
{
	const char *refused = "/ncclmon-12.3: what is there is not a folder of yours alone (dir=PATH puts it elsewhere)";

	CHECK(!mkdir("shared", 0777) && !mkdir("mine", 0755) && !symlink("../mine", "shared/ncclmon-12.3"));
	expect_no_folder("observe,dir=shared", refused);
	CHECK(!unlink("shared/ncclmon-12.3") && !mkdir("shared/ncclmon-12.3", 0755));
	expect_folder("observe,dir=shared", "shared/ncclmon-12.3");
	CHECK(!chmod("shared/ncclmon-12.3", 0775));
	expect_no_folder("observe,dir=shared", refused);
	CHECK(!chmod("shared/ncclmon-12.3", 0757));
	expect_no_folder("observe,dir=shared", refused);
	CHECK(!chmod("shared/ncclmon-12.3", 0755));
	if (!geteuid() && !chown("shared/ncclmon-12.3", 54321, 54321))
		expect_no_folder("observe,dir=shared", refused);
}

void test_folder(void)
{
	char template[] = "/tmp/ncclmon-check.XXXXXX", absolute[64], command[64];

	CHECK(mkdtemp(template) && !chdir(template) && getcwd(here, sizeof here - 1));
	strcat(here, "/");
	unsetenv("SLURM_RESTART_COUNT");
	expect_folder("observe", "ncclmon-12.3");
	expect_folder("observe", "ncclmon-12.3"); /* once more: it is there */
	expect_folder("observe,dir=a/b//c", "a/b//c/ncclmon-12.3");
	snprintf(absolute, sizeof absolute, "observe,dir=%s/x", template);
	strcpy(command, strchr(absolute, '/'));
	strcat(command, "/ncclmon-12.3");
	expect_folder(absolute, command);
	setenv("SLURM_RESTART_COUNT", "2", 1);
	expect_folder("observe", "ncclmon-12.3.r2");
	unsetenv("SLURM_RESTART_COUNT");
	CHECK(!symlink("/etc/passwd", "file"));
	expect_no_folder("observe,dir=file", "Not a directory");
	expect_no_folder("observe,dir=/proc/none", "cannot make the report folder /proc/none/ncclmon-12.3: ");
	expect_no_folder("nonsense", "neither");
	test_folder_of_others();
	CHECK(!chdir("/"));
	snprintf(command, sizeof command, "rm -rf %s", template);
	CHECK(!system(command));
}

static bool holds(char *const list[], const char *text)
{
	for (; *list; list++)
		if (!strcmp(*list, text))
			return true;
	return false;
}

/* What runs the monitor, with another program in the monitor's place. */
static int exit_code_of(const char *ncclmon, const char *job_step)
{
	struct step step = example("observe");
	char **command;
	int status = -1;
	pid_t child;

	step.ncclmon = ncclmon;
	for (command = monitor_command(&step); strcmp(*command, "/bin/sh"); command++)
		;
	command[5] = "-c";
	command[6] = (char *)job_step;
	command[7] = NULL;
	child = fork();
	if (!child) {
		close(STDERR_FILENO);
		execv(command[0], command);
		_exit(127);
	}
	waitpid(child, &status, 0);
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void test_exit_codes(void)
{
	CHECK(exit_code_of("/bin/sh", "exit 0") == 0);
	CHECK(exit_code_of("/bin/sh", "exit 7") == 0);
	CHECK(exit_code_of("/bin/sh", "exit 86") == 86);
	CHECK(exit_code_of("/bin/sh", "kill -SEGV $$") == 0);
	CHECK(exit_code_of("/bin/sh", "trap 'exit 86' TERM; kill -TERM $PPID $$; sleep 1") == 86);
	CHECK(exit_code_of("/no/such/ncclmon", "") == 0);
}

void test_command(void)
{
	struct step step = example("cancel,confirm=15s");
	char **command = monitor_command(&step);

	CHECK_TEXT(command[0], "/opt/slurm/bin/srun");
	CHECK(holds(command, "--jobid=12") && holds(command, "--nodelist=n1") && holds(command, "12.3"));
	CHECK(holds(command, "cancel,confirm=15s") && !holds(command, "--het-group=0"));
	step.group = 0;
	CHECK(holds(monitor_command(&step), "--het-group=0"));
	test_exit_codes();
}

void test_environment(void)
{
	char *const given[] = { "PATH=/bin", "SLURM_CONF=/etc/slurm.conf", "SLURM_NTASKS=8", "SLURM_CPU_BIND=cores",
				"SLURM_SPANK__SLURM_SPANK_OPTION_ncclmon_nccl_hang_detect=cancel", "LC_ALL=C.UTF-8",
				"LD_PRELOAD=/evil.so", "NCCL_DEBUG=INFO", "NCCLMON_DEBUG=1", "NCCLMON_IS_MONITOR=0", "HOME=/root",
				"HOMEPAGE=x", "PYTHONPATH=/mine", "noequals", "SLURM_NCCL_HANG_DETECT=cancel", NULL };
	char *const empty[] = { NULL };
	struct step step = example("observe");
	char **environment;

	strcpy(step.folder, "/job/ncclmon-12.3");
	step.config = "/etc/ncclmon.toml";
	environment = monitor_environment(&step, given);
	CHECK_TEXT(environment[0], "NCCLMON_IS_MONITOR=1");
	CHECK_TEXT(environment[1], "SLURM_NCCL_HANG_DETECT=off");
	CHECK(holds(environment, "PATH=/bin:/opt/slurm/bin") && holds(environment, "SLURM_CONF=/etc/slurm.conf"));
	CHECK(holds(environment, "LC_ALL=C.UTF-8") && holds(environment, "NCCLMON_DEBUG=1") && holds(environment, "HOME=/root"));
	CHECK(holds(environment, "NCCLMON_REPORT_DIR=/job/ncclmon-12.3"));
	CHECK(holds(environment, "NCCLMON_CONFIG=/etc/ncclmon.toml"));
	CHECK(!holds(environment, "SLURM_NTASKS=8") && !holds(environment, "LD_PRELOAD=/evil.so"));
	CHECK(!holds(environment, "NCCLMON_IS_MONITOR=0") && !holds(environment, "noequals"));
	CHECK(!holds(environment, "HOMEPAGE=x") && !holds(environment, "SLURM_NCCL_HANG_DETECT=cancel"));
	environment = monitor_environment(&step, empty);
	CHECK(holds(environment, "PATH=/usr/local/bin:/usr/bin:/bin:/opt/slurm/bin"));
}
