"""Where the hub and the cells are found. Entry point: `find_federation`."""

from collections.abc import Mapping
from pathlib import Path

from datum_compute.cli.shell.failures import usage
from datum_compute.cli.shell.run import Run
from datum_compute.cli.talk.planes import Federation, connector, is_beside, read_config
from datum_compute.cli.talk.target import Mode, kubeconfig_files
from datum_compute.kube.access.kubeconfig import Kubeconfig, KubeconfigError


def find_federation(
    run: Run, file: str, *, context: str = "", cells: Mapping[str, str] = {}, host: str = ""
) -> Federation | None:
    """The federation that flags name, or the one on this machine that the project belongs to; None for neither."""
    try:
        if file:
            config = Kubeconfig.read([Path(file)])
            return Federation(config, connector(run), hub=context, cells=cells, host=host)
    except KubeconfigError as error:
        raise usage(f"--federation-kubeconfig: {error}") from None
    if context or cells or host:
        raise usage("--federation-context, --cell-context and --host-context need --federation-kubeconfig")
    beside = _beside(run)
    return Federation(beside, connector(run)) if beside is not None else None


def _beside(run: Run) -> Kubeconfig | None:
    """The kubeconfig of a local federation, if the project is in it."""
    target = run.target
    if target.mode is Mode.PLUGIN:
        return None
    if target.mode is Mode.LOCAL:
        from datum_compute.local import state

        files = [state.kubeconfig_path(state.default_directory())]
    else:
        files = kubeconfig_files(run.settings.kubeconfig, run.environment.environ)
    config = read_config(files)
    return config if config is not None and is_beside(config, target.server) else None
