"""jit.config: the option table, its environment variables, and what it refuses."""

import pytest
import torch

import jit
from jit import config

SHOW = "from jit import config; print(config.{})"


def test_every_option_is_described():
    lines = config.describe().splitlines()
    assert len(lines) == len(config.OPTIONS)
    for line, (name, option) in zip(lines, config.OPTIONS.items(), strict=True):
        assert line.startswith(f"{name} = ") and f"JIT_{name.upper()}" in line and option.help in line
        assert option.help and not option.help.endswith(".")


def test_defaults_have_their_type_and_pass_their_own_check():
    for name, option in config.OPTIONS.items():
        assert option.type in (bool, int, str, float), name
        assert option.minimum is None or option.default >= option.minimum, name


@pytest.mark.parametrize(
    "variable, text, name, value",
    [
        ("JIT_STRICT", "1", "strict", "True"),
        ("JIT_STRICT", "off", "strict", "False"),
        ("JIT_CACHE_LIMIT", "3", "cache_limit", "3"),
        ("JIT_CPU_POOL_MB", "0", "cpu_pool_mb", "0"),
        ("JIT_CACHE_DIR", "/tmp/elsewhere", "cache_dir", "/tmp/elsewhere"),
    ],
)
def test_environment(python, variable, text, name, value):
    assert python(SHOW.format(name), **{variable: text}).stdout.strip() == value


@pytest.mark.parametrize(
    "variable, text, says",
    [
        ("JIT_STRICT", "maybe", "JIT_STRICT='maybe': expected 1 or 0"),
        ("JIT_CACHE_LIMIT", "many", "JIT_CACHE_LIMIT='many': expected a whole number (int), such as 8"),
        ("JIT_CACHE_LIMIT", "0", "JIT_CACHE_LIMIT='0': the least is 1"),
    ],
)
def test_bad_environment_is_named(python, variable, text, says):
    done = python("from jit import config", check=False, **{variable: text})
    assert done.returncode and says in done.stderr


def test_variables_that_are_not_read(python):
    """One with a name like ours is told of when jit is imported, others are listed by ``python -m jit doctor``."""
    done = python("import jit\nfrom jit.runtime import doctor\nprint(dict(doctor.CHECKS)['environment'].__doc__)\n"
                  "try: dict(doctor.CHECKS)['environment']()\nexcept doctor.Problem as p: print(p.what, p.fatal)",
                  JIT_CACHELIMIT="3", JIT_OF_ANOTHER_TOOL="1")
    (said,) = [line for line in done.stderr.splitlines() if "UserWarning" in line]
    assert said.startswith("<string>:1: ") and "JIT_CACHELIMIT is not read (did you mean 'JIT_CACHE_LIMIT'?)" in said
    assert "JIT_CACHELIMIT (did you mean 'JIT_CACHE_LIMIT'?), JIT_OF_ANOTHER_TOOL False" in done.stdout


def test_unknown_option():
    said = r"no option 'cache_size' \(did you mean 'cache_size_mb'\?\); the options are: .*cache_limit"
    with pytest.raises(AttributeError, match=said):
        config.cache_size = 3
    with pytest.raises(AttributeError, match="no option 'cache_size'"):
        config.cache_size


def test_wrong_type_and_range():
    with pytest.raises(TypeError, match="jit.config.cache_limit takes int, not str"):
        config.cache_limit = "3"
    with pytest.raises(TypeError, match="takes bool, not int"):
        config.strict = 1
    with pytest.raises(ValueError, match="jit.config.cache_limit = 0: the least is 1"):
        config.cache_limit = 0


def test_patch_restores():
    before = config.cache_limit
    with config.patch(cache_limit=before + 1, strict=not config.strict):
        assert config.cache_limit == before + 1
    assert config.cache_limit == before
    with pytest.raises(ZeroDivisionError), config.patch(cache_limit=before + 1):
        1 / 0
    assert config.cache_limit == before
    strict = config.strict
    with pytest.raises(TypeError), config.patch(strict=not strict, cache_limit="x"):
        pass
    assert (config.strict, config.cache_limit) == (strict, before)
    with pytest.raises(AttributeError, match="no option 'nothing'"), config.patch(nothing=1):
        pass


def test_the_page_lists_every_option_and_channel():
    from pathlib import Path

    from jit import logs

    page = (Path(__file__).resolve().parent.parent / "docs" / "logs.md").read_text()
    for name in config.OPTIONS:
        assert f"| `{name}` | `JIT_{name.upper()}` |" in page, f"docs/logs.md lacks the option {name}"
    for name, text in logs.CHANNELS.items():
        assert f"| `{name}` |" in page, f"docs/logs.md lacks the channel {name}"


def test_options_of_a_function_hold_while_it_is_captured_too():
    def draws(x):
        return x - 1 if not torch.compiler.is_compiling() else torch.rand_like(x)

    x = torch.ones(4000)
    torch.manual_seed(0)
    want = torch.rand_like(x)
    for says_compiling in (True, False):
        f = jit.compile(draws, fullgraph=True, options={"says_compiling": says_compiling, "fallback_random": True})
        torch.manual_seed(0)
        assert torch.equal(f(x), want if says_compiling else x - 1)
    assert config.says_compiling and not config.fallback_random
