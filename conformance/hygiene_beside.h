/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/hygiene_beside.h - two handles that are alive together. */
#ifndef SLM_HYGIENE_BESIDE_H
#define SLM_HYGIENE_BESIDE_H

#include "repetition.h"

/* Judge the case's handle beside another one with weights and numbers of its own, opened
 * before it and after it: as it is, after a call of the other, during calls of the other
 * in its own thread, after the other was closed. Returns whether all is well, as it is
 * where the testee has no other handle (testee_about.neighbours), where the case is too
 * large to be copied, and where the other handle's weights are refused.            A3 */
bool hygiene_beside(const repetition *check);

#endif
