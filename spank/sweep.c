/* slurmstepd is root and the folder belongs to an ordinary user, who can put anything into it. So a child gives up all
 * rights but that user's, and what it then does the user could do as well. slurmstepd has threads: the child calls
 * async-signal-safe functions only, and the kernel itself where the library's functions would address other threads or
 * allocate memory. */
#include "sweep.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PATIENCE_MS 1000
#define TICK_MS 5

struct entry { /* as the system call getdents64 writes it */
	uint64_t inode;
	int64_t offset;
	uint16_t length;
	uint8_t type;
	char name[];
};

static bool become(uid_t uid, gid_t gid)
{
	if (!uid)
		return false;
	syscall(SYS_setresuid, 0, 0, 0); /* needed where only the effective user is another than root */
	return !syscall(SYS_setgroups, 0, NULL) && !syscall(SYS_setresgid, gid, gid, gid) &&
	       !syscall(SYS_setresuid, uid, uid, uid) && geteuid() == uid && getegid() == gid;
}

/* PID.frames or PID-N.frames, of a process that is gone: another component of a heterogeneous job may go on here. */
static bool is_left_over(const char *name)
{
	const size_t length = strlen(name), suffix = strlen(".frames");
	const char *digit = name;
	long pid = 0;

	if (length <= suffix || strcmp(name + length - suffix, ".frames"))
		return false;
	for (; *digit >= '0' && *digit <= '9' && pid < INT32_MAX / 10; digit++)
		pid = pid * 10 + (*digit - '0');
	return pid <= 0 || kill((pid_t)pid, 0);
}

static void remove_file(int folder, const char *name)
{
	struct stat status;

	if (is_left_over(name) && !fstatat(folder, name, &status, AT_SYMLINK_NOFOLLOW) && S_ISREG(status.st_mode))
		unlinkat(folder, name, 0);
}

static void remove_files(int folder)
{
	char buffer[8192] __attribute__((aligned(8)));
	const struct entry *entry;
	long size, at;

	while ((size = syscall(SYS_getdents64, folder, buffer, sizeof buffer)) > 0) {
		for (at = 0; at < size; at += entry->length) {
			entry = (const struct entry *)(buffer + at);
			remove_file(folder, entry->name);
		}
	}
}

static bool remove_folder(const struct folder *folder)
{
	const int flags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
	int parent = open(folder->parent, flags), own;
	struct stat status;

	own = parent < 0 ? -1 : openat(parent, folder->name, flags);
	if (own < 0)
		return errno == ENOENT;
	if (fstat(own, &status) || status.st_uid != folder->uid)
		return false;
	remove_files(own);
	return !unlinkat(parent, folder->name, AT_REMOVEDIR) || errno == ENOENT;
}

/* Returns whether the child is gone within that time. */
static bool is_gone(pid_t child, int *status, int patience_ms)
{
	const struct timespec tick = { .tv_nsec = TICK_MS * 1000000L };

	for (; patience_ms > 0; patience_ms -= TICK_MS) {
		if (waitpid(child, status, WNOHANG))
			return true;
		nanosleep(&tick, NULL);
	}
	return false;
}

/* The child has the user's rights, so the user may stop it: we kill it rather than wait for it. */
bool sweep(const struct folder *folder)
{
	pid_t child = fork();
	int status = -1;

	if (!child)
		_exit(!become(folder->uid, folder->gid) || !remove_folder(folder));
	if (child < 0)
		return false;
	if (!is_gone(child, &status, PATIENCE_MS)) {
		kill(child, SIGKILL);
		is_gone(child, &status, PATIENCE_MS);
	}
	return WIFEXITED(status) && !WEXITSTATUS(status);
}
