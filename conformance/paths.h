/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/paths.h - where an installed or a just built slmoe finds its data.
 *
 * In the data folder of the installation that this program is a part of (its prefix may
 * have moved since), else in the source tree that it was built from. */
#ifndef SLM_PATHS_H
#define SLM_PATHS_H

enum { SLM_PATH = 4096 };

/* The folder of this program, without a slash at its end; "" when it cannot be told. */
void slm_program_dir(char out[SLM_PATH]);

/* The prefix that find_package(slm) needs: that of the installation, or the build
 * folder; "" when it cannot be told. */
void slm_prefix_dir(char out[SLM_PATH]);

/* The golden vectors; spec.md. */
void slm_vectors_dir(char out[SLM_PATH]);
void slm_spec_file(char out[SLM_PATH]);

#endif
