/* SPDX-License-Identifier: MIT */
#ifndef CLI_DRIVE_SPEED_H
#define CLI_DRIVE_SPEED_H

/* Measures the drive of this file's folder, on a file of random bytes that it writes there, reads
 * as the engine reads experts, and removes. Returns an exit code. */
int cli_drive_speed(const char *beside, double *bytes_per_s);

#endif
