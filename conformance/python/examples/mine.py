"""A first backend in PyTorch: two operations of the layer, everything else is skipped."""

import slm
import torch
from slm.torch_arrays import give, refuse_not_finite, take


class Mine(slm.Backend):
    """RMSNorm of the routed aggregate and the SiTU-GLU activation, in binary32."""

    name, version = "mine", "0.1"

    def rmsnorm(self, *, u, gamma=None):
        """u [T, l], gamma [l] or None -> r [T, l] (clause L2)."""
        u, gamma = take(u), take(gamma)
        refuse_not_finite("u", ~u.isfinite())
        r = u * torch.rsqrt(u.square().mean(-1, keepdim=True) + self.config.eps)
        return give({"r": r if gamma is None else r * gamma})

    def situ_glu(self, *, gate_up):
        """gate_up [T, 2 f], gate first -> h [T, f] (clause L1)."""
        gate, up = take(gate_up).chunk(2, -1)
        beta_gate, beta_up = self.config.beta_gate, self.config.beta_up
        gate = beta_gate * (gate / beta_gate).tanh() * gate.sigmoid()
        return give({"h": gate * beta_up * (up / beta_up).tanh()})
