/* Needs root, as slurmstepd has it: becomes an ordinary user and may then do that user's work only. */
#include "../sweep.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "check.h"

#define USER 54321

static char parent[] = "/tmp/ncclmon-check-XXXXXX", path[128];

static const char *in(const char *name)
{
	snprintf(path, sizeof path, "%s/%s", parent, name);
	return path;
}

static void make_folder_of(const char *name, uid_t uid)
{
	CHECK(!mkdir(in(name), 0700));
	CHECK(!chown(in(name), uid, uid));
}

static void make_file_of(const char *name, uid_t uid)
{
	int file = open(in(name), O_WRONLY | O_CREAT | O_EXCL, 0600);

	CHECK(file >= 0 && !fchown(file, uid, uid));
	close(file);
}

static bool exists(const char *name)
{
	struct stat status;

	return !lstat(in(name), &status);
}

static bool swept(const char *name, uid_t uid)
{
	struct folder folder = { parent, name, uid, uid };

	return sweep(&folder);
}

static void test_frames_of_dead_processes_go(void)
{
	make_folder_of("own", USER);
	make_file_of("own/2147483646.frames", USER);
	make_file_of("own/2147483646-1.frames", USER);
	make_file_of("own/99999999999999999999.frames", USER);
	CHECK(swept("own", USER));
	CHECK(!exists("own"));
	CHECK(swept("own", USER)); /* nothing there is what was wanted */
}

static void test_frames_of_living_processes_stay(void)
{
	char name[64];
	pid_t child = fork();

	if (!child) {
		if (setuid(USER))
			_exit(1);
		pause();
		_exit(0);
	}
	usleep(50000);
	make_folder_of("busy", USER);
	snprintf(name, sizeof name, "busy/%d.frames", (int)child);
	make_file_of(name, USER);
	CHECK(!swept("busy", USER));
	CHECK(exists(name));
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
	CHECK(swept("busy", USER));
	CHECK(!exists("busy"));
}

static void test_nothing_else_goes(void)
{
	make_folder_of("mixed", USER);
	make_file_of("mixed/notes.txt", USER);
	make_file_of("mixed/.frames", USER);
	make_folder_of("mixed/7777777.frames", USER);
	CHECK(!symlink("/etc/passwd", in("mixed/link.frames")));
	CHECK(!swept("mixed", USER));
	CHECK(exists("mixed/notes.txt") && exists("mixed/.frames") && exists("mixed/7777777.frames") &&
	      exists("mixed/link.frames"));
}

static void test_folders_of_others(void)
{
	make_folder_of("other", USER + 1);
	make_file_of("other/x.frames", USER);
	CHECK(!chmod(in("other"), 0777));
	CHECK(!swept("other", USER));
	CHECK(exists("other/x.frames"));
	make_folder_of("roots", 0);
	make_file_of("roots/x.frames", 0);
	CHECK(!swept("roots", 0));
	CHECK(exists("roots/x.frames"));
	make_folder_of("target", USER);
	make_file_of("target/x.frames", USER);
	CHECK(!symlink("target", in("alias")));
	CHECK(!swept("alias", USER));
	CHECK(exists("target/x.frames") && exists("alias"));
	CHECK(!swept("../../etc", USER));
}

/* The user may stop a process of that user at any time. */
static void test_stopped_child(void)
{
	struct timespec before, after;

	make_folder_of("held", USER);
	clock_gettime(CLOCK_MONOTONIC, &before);
	stop_child = true;
	CHECK(!swept("held", USER));
	stop_child = false;
	clock_gettime(CLOCK_MONOTONIC, &after);
	CHECK(after.tv_sec - before.tv_sec < 5);
	CHECK(waitpid(-1, NULL, WNOHANG) == -1 && errno == ECHILD);
	CHECK(swept("held", USER));
}

void test_sweep(void)
{
	char command[160];

	if (geteuid()) {
		fprintf(stderr, "removing a user's folder is tested by root only\n");
		return;
	}
	CHECK(mkdtemp(parent) && !chmod(parent, 01777));
	test_frames_of_dead_processes_go();
	test_frames_of_living_processes_stay();
	test_nothing_else_goes();
	test_folders_of_others();
	test_stopped_child();
	snprintf(command, sizeof command, "rm -r %s", parent);
	CHECK(!system(command));
	CHECK(!geteuid());
}
