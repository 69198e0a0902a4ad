"""Register rope_xp's rotation with the package kernels, for models of transformers."""

from pathlib import Path

from kernels import LocalLayerRepository

FOLDER = Path(__file__).parent / "hub"
"""A repository as the package kernels reads them."""


def repository() -> LocalLayerRepository:
    """Return what a kernel mapping names for ``rotary_pos_emb``, on any device and in any mode.

    Where ``kernels.kernelize`` puts it, the model's own function is asked for a few values once,
    and from then on rope_xp rotates in its layout and by its tables. Functions that rotate in no
    layout, such as nanochat's, are left to compute by themselves. So is all that is compiled before
    the first call: run a model once, then compile it.

    Returns
    -------
    kernels.LocalLayerRepository
        Of the layer ``apply_rotary_transformers``.

    Examples
    --------
    >>> import kernels
    >>> from rope_xp.integrations.kernels import repository
    >>> mapping = {"rotary_pos_emb": {"cpu": repository(), "cuda": repository()}}
    >>> kernels.register_kernel_mapping(mapping)
    """
    return LocalLayerRepository(repo_path=FOLDER, layer_name="apply_rotary_transformers")
