"""The package as its user has it: types, signatures, documentation, the example."""

import importlib.metadata
import inspect
import os
import pathlib
import subprocess
import sys

import convoke

HERE = pathlib.Path(__file__).parent
PACKAGE = pathlib.Path(convoke.__file__).parent


def output_of(*command, **options):
    result = subprocess.run([sys.executable, *command], capture_output=True, text=True, **options)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_the_package_is_typed(tmp_path):
    assert (PACKAGE / "py.typed").exists() and (PACKAGE / "_convoke.pyi").exists()
    (tmp_path / "user.py").write_text(
        "import convoke\n"
        "import numpy as np\n"
        "planner = convoke.Planner(threads=2, activation=('clip', 0, 6), accuracy='fast')\n"
        "plan: convoke.Plan = planner.conv((1, 3, 8, 8), [4, 3, 3, 3], np.float32, strides=(2, 2), auto_pad='SAME_UPPER')\n"
        "packed: convoke.PackedWeights = plan.pack(np.ones(plan.weight_shape, np.float32))\n"
        "y: np.ndarray = plan.run(np.ones(plan.input_shape, np.float32), packed)\n"
        "shape: tuple[int, ...] = plan.output_shape\n"
        "y = convoke.conv(y, y, layout='NHWC') + convoke.conv_transpose(y, y, layout=('NCHW', 'NHWC'))\n"
        "bytes_ = planner.plan_quantised('Conv', (1, 1, 4), (1, 1, 2), np.uint8, np.int8, 'float32')\n"
        "weights = bytes_.pack(np.ones((1, 1, 2), np.int8), w_zero_point=np.int8(3))\n"
        "scaled: convoke.Scaled = bytes_.scaled(weights, x_scale=0.5, w_scale=np.ones(1, np.float32), x_zero_point=7)\n"
        "y = bytes_.run(np.ones((1, 1, 4), np.uint8), weights, scaled)\n"
    )
    (tmp_path / "wrong.py").write_text("import convoke\nconvoke.Planner(activation='softplus')\nconvoke.Planner().conv((1, 1, 3))\nconvoke.Planner().conv((1,), (1,), layout='HWC')\n")
    mypy = ["-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache")]
    output_of(*mypy, str(tmp_path / "user.py"), cwd=tmp_path)
    output_of(*mypy, "-p", "convoke", cwd=tmp_path)
    wrong = subprocess.run([sys.executable, *mypy, str(tmp_path / "wrong.py")], capture_output=True, text=True, cwd=tmp_path)
    assert "Found 3 errors" in wrong.stdout


def test_stubs_are_those_of_the_library(tmp_path):
    assert "no issues found" in output_of("-m", "mypy.stubtest", "convoke._convoke", cwd=tmp_path)


def test_everything_public_is_documented():
    for name in convoke.__all__:
        value = getattr(convoke, name)
        if inspect.isclass(value) or inspect.isfunction(value):
            assert value.__doc__, name
    for cls in (convoke.Planner, convoke.Plan, convoke.PackedWeights, convoke.QuantisedPlan, convoke.Scaled):
        for name, value in vars(cls).items():
            if not name.startswith("_"):
                assert (value.__func__ if isinstance(value, staticmethod) else value).__doc__, f"{cls.__name__}.{name}"
    assert str(inspect.signature(convoke.Plan.run)) == "(self, /, x, packed, *, residual=None, out=None)"


def test_the_readme_runs(tmp_path):
    """Every block of Python in it, one after the other."""
    text = (HERE.parent / "README.md").read_text()
    blocks = [block.split("```")[0] for block in text.split("```python\n")[1:]]
    assert len(blocks) >= 2
    output_of("-c", "\n".join(blocks), cwd=tmp_path)


def test_the_page_on_linking_runs(tmp_path):
    """The program that docs/linking.md has for Python."""
    text = (HERE.parents[2] / "docs" / "linking.md").read_text()
    blocks = [block.split("```")[0] for block in text.split("```python\n")[1:]]
    (program,) = [block for block in blocks if "import convoke\n" in block]
    output_of("-c", program, cwd=tmp_path)


def test_the_example_draws_its_bars():
    example = HERE.parent / "examples" / "compare_layer.py"
    text = output_of(str(example), "--seconds", "0.02", "--x", "1,8,12,12", "--w", "8,8,3,3", "--pads", "1,1,1,1")
    assert "convoke" in text and "onnxruntime" in text and "█" in text
    wrong = subprocess.run([sys.executable, str(example), "--x", "1,8,2,2", "--w", "8,8,3,3"], capture_output=True, text=True)
    assert wrong.returncode == 1 and wrong.stderr.startswith("Conv: spatial axis 0: padded input 2")


def test_the_bench_of_calls_runs():
    text = output_of(str(HERE.parent / "examples" / "overhead.py"), "--calls", "20", "--repeat", "2")
    assert len(text.splitlines()) == 4 and all(float(line.split()[-2]) > 0 for line in text.splitlines())


def test_the_wheel_is_for_every_python():
    """For those that the README names: by its tag, its metadata, and the name of the library."""
    package = importlib.metadata.distribution("convoke")
    tags = [line.split()[1] for line in package.read_text("WHEEL").splitlines() if line.startswith("Tag: ")]
    assert tags and all(tag.startswith("cp310-abi3-") for tag in tags)
    assert package.metadata["Requires-Python"] == ">=3.10"
    assert "numpy>=1.24" in [requirement.replace(" ", "") for requirement in package.requires]
    readme = (HERE.parent / "README.md").read_text()
    assert "Python 3.10 and newer" in readme and "numpy 1.24 or newer" in readme
    assert (PACKAGE / ("_convoke.abi3.so" if os.name == "posix" else "_convoke.pyd")).exists()
