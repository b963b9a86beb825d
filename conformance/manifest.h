/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/manifest.h - vectors/MANIFEST: version of the set, digest of each file. */
#ifndef SLM_MANIFEST_H
#define SLM_MANIFEST_H

#include <stddef.h>
#include <stdio.h>

/* Compare the listed files with their digests; one line for each that differs or is
 * gone. Returns their number, or SIZE_MAX and `why` (512 bytes) when the manifest
 * itself cannot be read. Files that are not listed are new and no difference; a folder
 * without MANIFEST has none. */
size_t manifest_check(const char *vectors, FILE *out, char *why);

/* List every file anew, keeping the version; whole or not at all. Returns 0 and `why`
 * (512 bytes) on failure. A path that is not a folder is left alone. */
int manifest_write(const char *vectors, char *why);

#endif
