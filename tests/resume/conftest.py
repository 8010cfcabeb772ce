"""Two sites for the whole folder: one with real engines, of which a start costs a minute, and one without a model."""

from collections.abc import Iterator

import pytest

from tests.resume.pods import Site, scripted, site

# In float32 a text does not depend on what else is in the batch, nor on what was computed at once: it can be compared.
REAL = (
    "--dtype", "float32", "--max-model-len", "2048", "--max-num-seqs", "64", "--kv-cache-memory-bytes", "1G",
    "--override-generation-config", '{"temperature": 0}', "--drain", "handover",
)  # fmt: skip


# Not longer than the folder: what is started costs memory, and the processors' time when it is asked for metrics.
@pytest.fixture(scope="package")
def real_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with site(tmp_path_factory.mktemp("real"), *REAL) as made:
        yield made


@pytest.fixture(scope="package")
def scripted_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("scripted")
    with site(folder, *scripted(folder)) as made:
        yield made


@pytest.fixture
def real(real_site: Site) -> Site:
    real_site.make_ready()
    return real_site


@pytest.fixture
def no_model(scripted_site: Site) -> Site:
    scripted_site.make_ready()
    return scripted_site
