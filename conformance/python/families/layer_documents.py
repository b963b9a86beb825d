# SPDX-License-Identifier: Apache-2.0
"""The note's seed 7: minimal structure with linear experts, as PyTorch 1.13.1 drew it.

The note asserts y.shape == x.shape and a mean square of 1 for the normalised aggregate. The
expected values are the exact results for these tensors, typed as hexadecimal binary64.
"""

from golden.cases import Family, tensor

SOURCE = "note, minimal structure reference"


def _read(text: str) -> list[float]:
    return [float.fromhex(v) for v in text.replace(",", " ").split()]


def shaped(text: str, *shape: int):
    t = tensor(_read(text))
    t.shape = shape
    return t


INPUTS = {
    "x": shaped("""
    -0x1.a3e8acp-1 0x1.952056p-2 0x1.cc3dbcp-1 -0x1.636e7p+0 -0x1.560202p-3
    0x1.23fe5ap-2 -0x1.483d26p-1 -0x1.c98d34p-1 0x1.da63d8p-1 -0x1.122ea8p-1
    -0x1.28e36ep+0 -0x1.d7337p-2 0x1.6ac5a2p-1 0x1.0343fp+0 -0x1.628cd4p+0 0x1.01d32p-1
    -0x1.5621b2p-4 -0x1.80a996p-6 0x1.651ee8p-3 0x1.263018p+1 0x1.ea094cp-1
    -0x1.52e04ep-1 0x1.661f84p+0 0x1.67e5fap+0 -0x1.66b86p+0 0x1.4c1e34p+0 0x1.a41434p+0
    -0x1.0e82dap+0 -0x1.0bdd64p-2 -0x1.0022c4p-2""", 5, 6),
    "w_down": shaped("""
    0x1.a20696p-1 -0x1.10bdfcp+0 0x1.10e008p-3 0x1.75da5ep-3 -0x1.077de4p-1
    0x1.99dd9ap-1 -0x1.3e41aep+0 -0x1.b7be96p+0 -0x1.2a2ed8p-1 -0x1.3b0e76p-1
    -0x1.c58736p-1 0x1.326fccp+0 0x1.deae6p-2 -0x1.26c9fep-3 -0x1.9fbf1p-1
    -0x1.8bdb0cp-2 -0x1.0977e6p+0 0x1.2f1e86p-1""", 3, 6),
    "w_lift": shaped("""
    -0x1.20ff02p+1 0x1.9e0068p-2 0x1.0e9c2p+0 -0x1.1acd36p+0 0x1.05011ep-3
    -0x1.365c78p-6 -0x1.a10b9ap-2 0x1.103a86p-1 -0x1.7be208p-1 -0x1.466ce8p-1
    -0x1.36e9b6p+0 0x1.c5694cp+0 0x1.039f86p-1 -0x1.42bca8p-3 0x1.d75d3ap-2
    -0x1.2738a6p+0 -0x1.60fc58p-1 -0x1.959cb8p-5""", 6, 3),
    "w_router": shaped("""
    0x1.407e16p-1 0x1.73f162p-4 -0x1.2c0282p-1 -0x1.f5563ep-2 0x1.47938ep-1
    0x1.3804ecp-1 -0x1.890b2p-2 -0x1.11f376p-2 -0x1.181216p+1 -0x1.fc46p-1 0x1.c6e962p-1
    -0x1.7c96c4p+0 -0x1.c79838p-1 0x1.cd1234p-1 0x1.0bc25p-2 -0x1.3203ecp-3
    -0x1.80e91ep-2 0x1.59e8e8p-3 -0x1.1545p-1 -0x1.48a156p-3 0x1.dd8986p-1 0x1.09e48cp-4
    0x1.150becp-4 -0x1.190a98p-1""", 4, 6),
    "w_expert": shaped("""
    0x1.0e6804p-1 0x1.225ee6p+0 -0x1.06cf74p-4 0x1.459026p+0 -0x1.897f3ep+0
    0x1.e48ad8p-5 0x1.5d41f8p-1 -0x1.06decp+0 0x1.2d21f6p+1 0x1.0e34fep-2 -0x1.4bd278p-2
    0x1.9b8e64p-1 0x1.8bfefap+0 0x1.36246cp-1 -0x1.58cf5ap-1 -0x1.6cc81ep-1
    0x1.2f2a84p-2 -0x1.7fa4ecp-4 0x1.fe70fcp+0 -0x1.70b154p-1 -0x1.23d024p+0
    0x1.e4e3e8p+1 -0x1.6e219ep-2 0x1.7db4b8p-3 -0x1.2a56f4p+0 0x1.c51012p-1
    0x1.48ca12p+0 -0x1.ac7212p-1 -0x1.5ebd1ep+0 0x1.f15f24p-1 -0x1.5131a4p+1
    -0x1.7a9ff8p-6 0x1.7a3df6p-1 0x1.53389cp-1 0x1.815a3ap-1 0x1.26cda8p-1""", 4, 3, 3),
    "w_shared": shaped("""
    -0x1.a9efc4p-2 -0x1.27a664p+0 0x1.387632p-1 -0x1.cfc8f2p-1 -0x1.c2ef2p-1
    -0x1.b8aa5cp-1 -0x1.5947c8p-1 -0x1.82a2e2p+1 -0x1.16784cp+0 0x1.1344aap-1
    -0x1.21db48p+0 -0x1.d58f88p+0 -0x1.0d8dc6p-1 0x1.25d8acp+0 -0x1.1fedcep-2
    -0x1.615338p-1 0x1.16a134p-1 -0x1.c70dfcp-1 0x1.e2852cp-2 0x1.4bb85ep-1
    0x1.54e442p+0 -0x1.2e2b7cp-2 -0x1.d5fd22p-7 -0x1.269278p-1 0x1.a619a4p-2
    -0x1.94d584p-1 -0x1.4988f8p+0 -0x1.85709ep-3 -0x1.4e7f64p-4 -0x1.b43dap-1
    -0x1.acc0acp-2 0x1.5dc27ap-2 -0x1.a208a8p-7 0x1.a5c334p-1 -0x1.6eff82p-1
    0x1.b960b8p-1 -0x1.be6fbep-2 -0x1.ef68e4p-2 -0x1.4176cep-1 0x1.011328p+1
    0x1.1b170cp+1 0x1.f67aeap-3 0x1.4073fp-1 -0x1.0c1dc6p-2 -0x1.a664cep-2 0x1.8ec5fp-4
    0x1.937c34p-1 -0x1.9e7ad2p-1 -0x1.75e8c6p-3 0x1.baf62ap+0 0x1.a01b72p-8
    -0x1.81a73p+0 -0x1.3fbbaep-1 0x1.cfda62p-2 0x1.9f4f0cp-1 0x1.636832p+1 0x1.a01004p+0
    0x1.cc90dp+0 0x1.4745f6p-1 -0x1.91d066p-2 -0x1.2c534ep-1 -0x1.694848p-1 0x1.6d08cp-2
    -0x1.1e542cp+0 0x1.98acaap-1 0x1.ac4862p-3 -0x1.7a8de4p+0 0x1.13283ap+1 0x1.3323ep-3
    0x1.e06c3ap-1 0x1.1567dap-2 0x1.733216p-2""", 2, 6, 6),
    "bias": tensor([0.0] * 4),
}
EXPECTED = {
    "ids": tensor([[2, 3], [3, 2], [1, 0], [2, 0], [2, 3]]),
    "weight": shaped("""
    0x1.12b7d90908dbbp-1 0x1.da904dedee48ap-2 0x1.2524b13690023p-1 0x1.b5b69d92dffb9p-2
    0x1.15e05c008c5c6p-1 0x1.d43f47fee7474p-2 0x1.025da43a580cfp-1 0x1.fb44b78b4fe61p-2
    0x1.0877228a84cadp-1 0x1.ef11baeaf66a7p-2""", 5, 2),
    "r": shaped("""
    -0x1.548a9352f127ap+0 -0x1.ab2a52245c4p-1 0x1.7648766567cf1p-1 -0x1.4f4309d419fcap+0
    -0x1.033a172f0321bp-3 0x1.205ece4a135dbp+0 -0x1.8cc0bdc6f864ap-2
    -0x1.7fe0649b2f0f4p-2 0x1.a560c8ebe1086p+0 -0x1.3ef04e444feeap+0
    -0x1.6f2313954fd16p-1 -0x1.eeba109645357p-1 -0x1.4542baf964c65p-2
    -0x1.6c55907cd4d4fp+0 -0x1.de90e01a887ep-1""", 5, 3),
    "y": shaped("""
    0x1.8b7cdfaae4c7fp+0 -0x1.6b06aa4564813p+1 0x1.fbdfb9c6c8b2ap+1 0x1.d309575068a8cp+1
    0x1.6391eb3973003p-6 0x1.5b8f1906e47cbp+1 0x1.0f5a831777d78p+2 0x1.10987fe650e65p+2
    -0x1.459ec1741e944p+0 0x1.832dc7e8b538cp-1 0x1.40d5c0bb28bc5p-1
    -0x1.52ee1432a9f3fp-2 0x1.5d9892ae98276p-1 -0x1.0adb251d67ae9p-1
    0x1.c3be39db32ae2p-2 0x1.2823966d6f6d2p+2 -0x1.bbb78407f1231p-2 0x1.410aeddc22dd1p+1
    -0x1.14defe48724c5p+1 -0x1.89b8cffc13809p+3 0x1.f336e139e03e6p+2
    0x1.2cae763107d9cp+3 -0x1.16fc9f88060dep+2 0x1.dbf18b77b2559p+2
    -0x1.9552b063085fcp+1 -0x1.989f873b3ef21p+2 0x1.b2cca225b68fdp+2
    0x1.90cf8d1086ea7p+2 -0x1.1e1786571784cp+1 0x1.5d504a4e33fd5p+2""", 5, 6),
}


def families() -> list[Family]:
    f = Family("layer/seed-7",
               "The note's minimal structure, whole and routed, on its own random tensors.",
               ["R1", "R2", "R3", "L2", "L3", "L4"])
    sizes = {"d": 6, "l": 3, "n": 4, "k": 2, "S": 2}
    f.add("layer", "layer_forward", {"profile": "linear", **sizes}, INPUTS, out=EXPECTED,
          provenance="document", source=SOURCE)
    f.add("route", "route", {"d": 6, "n": 4, "k": 2},
          {name: INPUTS[name] for name in ("x", "w_router", "bias")},
          out={name: EXPECTED[name] for name in ("ids", "weight")},
          provenance="document", source=SOURCE)
    f.add("taps", "layer_forward", {"profile": "linear", **sizes}, INPUTS,
          want=("ids", "weight", "cutoff", "logit", "score", "z", "o", "u", "r", "y"))
    return [f]
