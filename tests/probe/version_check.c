/* version_check LIBRARY|none INTERFACE: what the plugin's version.c makes of a caller that lies in that library. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "version.h"

int main(int argc, char **argv)
{
	void *library = NULL;
	int version;

	if (argc < 3)
		return 2;
	if (strcmp(argv[1], "none") && !(library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL)))
		return 1;
	version = nccl_version(library ? dlsym(library, "ncclCommInitRank") : (void *)main, atoi(argv[2]));
	printf("%d %#x\n", version, (unsigned)nccl_mask(version));
	return 0;
}
