/* Which NCCL called us, and which events it may be asked for. */
#ifndef NCCLMON_VERSION_H
#define NCCLMON_VERSION_H

int nccl_version(const void *caller, int interface);
int nccl_mask(int version);

#endif
