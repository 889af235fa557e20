/* The dynamic loader's functions, so that they are found on old systems too. */
#ifndef NCCLMON_DL_H
#define NCCLMON_DL_H

#include <dlfcn.h>

/* The oldest version of these symbols: since glibc 2.34 they are in libc proper with a newer one, which older systems lack. */
#if defined(__x86_64__)
#define OLDEST "GLIBC_2.2.5"
#else
#define OLDEST "GLIBC_2.17"
#endif
__asm__(".symver dlopen,dlopen@" OLDEST);
__asm__(".symver dlsym,dlsym@" OLDEST);
__asm__(".symver dladdr,dladdr@" OLDEST);
__asm__(".symver dlclose,dlclose@" OLDEST);

#endif
