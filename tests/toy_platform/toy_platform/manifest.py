"""The table of kernels and what they make worth fusing. Standard library and the contract only."""

from __future__ import annotations

from platforms.contract import DeviceProfile, Facts, FusionOffer, Kernel, Verdict, all_of

_FLOAT32 = 4


def wanted(profile: DeviceProfile, facts: Facts) -> Verdict:
    """``TOY_KERNELS=0`` turns every kernel of the chip off."""
    said = facts.get("toy_kernels", "")
    return Verdict(said != "0", f"TOY_KERNELS={said}" if said else "TOY_KERNELS not set")


def float32(profile: DeviceProfile, facts: Facts) -> Verdict:
    """The chip has one floating type."""
    found = sorted({name for name in facts.get("call_dtypes", ()) if "float" in name})
    text = f"floating inputs are {' and '.join(found) or 'none'}"
    return Verdict(found == ["float32"], text if found == ["float32"] else f"{text}, needs float32")


def tile_fits(profile: DeviceProfile, facts: Facts) -> Verdict:
    """One tile of rows and the weight lie in scratch memory at once."""
    if "call_shapes" not in facts:
        return Verdict(False, "call_shapes unknown")
    hidden = facts["call_shapes"][1][0]
    need, have = (profile.limits["tile_rows"] + 1) * hidden * _FLOAT32, profile.limits["scratch_bytes"]
    return Verdict(need <= have, f"scratch_bytes {have} {'>=' if need <= have else '<'} {need}")


def head_fits(profile: DeviceProfile, facts: Facts) -> Verdict:
    """A head is no longer than the chip's registers."""
    if "head_dim" not in facts:
        return Verdict(False, "head_dim unknown")
    need, have = facts["head_dim"], profile.limits["head_dim"]
    return Verdict(need <= have, f"head_dim {need} {'<=' if need <= have else '>'} {have}")


def whole_heads(profile: DeviceProfile, facts: Facts) -> Verdict:
    """The kernel turns a head entirely or not at all."""
    if "call_shapes" not in facts:
        return Verdict(False, "call_shapes unknown")
    turned, head = facts["call_shapes"][2][1], facts["head_dim"]
    return Verdict(turned == head, f"{turned} of {head} elements of a head are turned")


KERNELS: tuple[Kernel, ...] = (
    Kernel(
        "rms_norm",
        "toy_tiles",
        "toy_platform.kernels:rms_norm",
        needs=wanted,
        accepts=all_of(float32, tile_fits),
        priority=10,
    ),
    Kernel(
        "rotary_kv_write",
        "toy_complex",
        "toy_platform.kernels:rotary_kv_write",
        needs=wanted,
        accepts=all_of(float32, head_fits, whole_heads),
        priority=10,
    ),
)

OFFERS: tuple[FusionOffer, ...] = (FusionOffer("fuse_rope_kvcache", all_of(wanted, head_fits)),)
