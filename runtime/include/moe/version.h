/* SPDX-License-Identifier: MIT */
#ifndef MOE_VERSION_H
#define MOE_VERSION_H

#define MOE_VERSION_MAJOR 0
#define MOE_VERSION_MINOR 2
#define MOE_VERSION_PATCH 0
#define MOE_VERSION_TEXT  "0.2.0"

#endif
