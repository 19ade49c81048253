"""Asks Python for the expected texts of jinja.json and floats.json, and writes them back."""

import json
import pathlib
import random
import struct

import jinja2

HERE = pathlib.Path(__file__).parent


def jinja_rows() -> None:
    path = HERE / "jinja.json"
    table = json.loads(path.read_text())
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined)
    for row in table["rows"]:
        row.pop("text", None)
        row.pop("error", None)
        try:
            template = environment.from_string(row["template"])
            row["text"] = template.render(input=json.loads(json.dumps(table["input"])), steps={}).strip()
            if " at 0x" in row["text"]:
                del row["text"]
                row["error"] = "prints an address"
        except Exception as error:  # every kind of failure is a row
            row["error"] = type(error).__name__
    rows = ",\n".join(json.dumps(row) for row in table["rows"])
    table["jinja2"] = jinja2.__version__
    head = json.dumps({key: table[key] for key in ("about", "jinja2", "input")}, indent=1)
    path.write_text(f'{head[:-2]},\n "rows": [\n{rows}\n]}}\n')


def floats() -> None:
    source = random.Random(7)
    values = [0.0, -0.0, 1.0, -1.5, 0.1, 1e15, 1e16, 123456789012345678.0, 9999999999999998.0, 1e-4, 1e-5, 9.999e-5]
    values += [5e-324, 2.2250738585072014e-308, 1.7976931348623157e308, 1 / 3, 2.5, 1e22, 1e23, 4.35, 0.3]
    values += [source.uniform(-10, 10) for _ in range(60)]
    values += [round(source.uniform(-1000, 1000), 2) for _ in range(60)]
    values += [source.uniform(1, 10) * 10.0 ** source.randint(-20, 25) for _ in range(120)]
    for _ in range(200):
        value = struct.unpack("<d", source.randbytes(8))[0]
        if value == value and abs(value) != float("inf"):
            values.append(value)
    # The bits say which number it is, so that no reader of numbers stands in between.
    rows = [[struct.pack(">d", value).hex(), repr(value)] for value in values]
    lines = ",\n".join(json.dumps(row) for row in rows)
    (HERE / "floats.json").write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    jinja_rows()
    floats()
