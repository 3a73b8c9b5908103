# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Reads the layouts of C structures from DWARF 4, as readelf prints it. Imported by interfaces.py."""

import re


class CannotCompare(Exception):
    """An upstream that cannot be read or compiled; the message says what to do."""


class Struct:
    """Size and flattened members of one structure: {path: (offset, size, type)}, and which members are in a union."""

    def __init__(self, size):
        self.size = size
        self.members = {}
        self.union_members = set()

    def shares_union(self, offset, names):
        """Whether `offset` starts a union of which `names` has an alternative."""
        return any(path in names for path in self.union_members if self.members[path][0] == offset)

    def has_leaf(self, path, member):
        """Whether a member with the same last name, offset and type exists under another path."""
        last = path.split(".")[-1]
        return any(p.split(".")[-1] == last and m == member for p, m in self.members.items())

    def at(self, offset):
        """Name of the member whose bytes hold `offset`; None for padding."""
        for path, (start, size, _type) in self.members.items():
            if start <= offset < start + size:
                return path
        return None

    def is_free(self, offset):
        """Whether `offset` is past the end, padding, or a reserved member."""
        held = self.at(offset)
        return offset >= self.size or held is None or "reserved" in held.split(".")[-1]


class DebugInfo:
    """Structures and enumerators of an object file, by `readelf --debug-dump=info`."""

    def __init__(self, text):
        self.entries = {}
        self.top = []
        self._parse(text)
        self.structs = {}
        self.enumerators = set()
        for entry in self.entries.values():
            if entry["tag"] == "structure_type" and "name" in entry and "declaration" not in entry:
                struct = Struct(number(entry["byte_size"]))
                self._flatten(entry, "", 0, struct, False)
                self.structs[entry["name"]] = struct
            if entry["tag"] == "enumerator":
                self.enumerators.add(entry["name"])

    def _parse(self, text):
        stack, entry = [], None
        head = re.compile(r"^ <(\d+)><([0-9a-f]+)>: Abbrev Number: \d+ \(DW_TAG_(\w+)\)")
        attribute = re.compile(r"^ +<[0-9a-f]+> +DW_AT_(\w+) *: (.*)$")
        # "(strp) (offset: 0x27): name", "(indirect string, offset: 0x27): name", "(data1) 8": by binutils' age.
        form = re.compile(r"^(?:\((?:strp|line_strp|string|[a-z]*data\w*|ref\w*|flag\w*|exprloc|implicit_const)\) ?)?"
                          r"(?:\([^)]*offset: 0x[0-9a-f]+\): )?")
        for line in text.splitlines():
            found = head.match(line)
            if found:
                depth, offset, tag = int(found[1]), int(found[2], 16), found[3]
                entry = {"tag": tag, "children": []}
                self.entries[offset] = entry
                del stack[depth:]
                if stack:
                    stack[-1]["children"].append(entry)
                stack.append(entry)
                continue
            found = attribute.match(line)
            if found and entry is not None:
                value = form.sub("", found[2]).strip()
                entry[found[1]] = value

    def _type_of(self, entry):
        reference = re.match(r"<0x([0-9a-f]+)>", entry.get("type", ""))
        return self.entries[int(reference[1], 16)] if reference else None

    def _strip(self, entry):
        """Follows typedefs and qualifiers; also returns whether fi_unused_op was among them."""
        unused = False
        while entry is not None and entry["tag"] in ("typedef", "const_type", "volatile_type", "restrict_type"):
            unused = unused or entry.get("name") == "fi_unused_op"
            entry = self._type_of(entry)
        return entry, unused

    def _describe(self, entry):
        """(size, canonical text) of a type. The text omits the signedness of integers."""
        entry, unused = self._strip(entry)
        if entry is None:
            return 0, "void"
        tag = entry["tag"]
        if tag == "base_type":
            size = number(entry["byte_size"])
            return size, ("bool" if "boolean" in entry.get("encoding", "") else f"int{8 * size}")
        if tag == "enumeration_type":
            size = number(entry["byte_size"])
            return size, f"int{8 * size}"
        if tag == "pointer_type":
            target, _ = self._strip(self._type_of(entry))
            if target is None or target["tag"] != "subroutine_type":
                return 8, "pointer"
            if unused:
                return 8, "any function"
            parameters = [self._describe(self._type_of(c))[1] for c in target["children"]
                          if c["tag"] == "formal_parameter"]
            return 8, f"function({', '.join(parameters)}) -> {self._describe(self._type_of(target))[1]}"
        if tag == "array_type":
            size, text = self._describe(self._type_of(entry))
            for child in entry["children"]:
                if child["tag"] == "subrange_type":
                    count = number(child["upper_bound"]) + 1 if "upper_bound" in child else 0
                    size, text = size * count, f"{text}[{count}]"
            return size, text
        if tag in ("structure_type", "union_type"):
            size = number(entry.get("byte_size", "0"))
            kind = tag.split("_")[0]
            return size, f"{kind} {entry.get('name', '(unnamed)')}"
        raise CannotCompare(f"a member has a type this tool does not know: DW_TAG_{tag}")

    def _flatten(self, entry, prefix, base, struct, in_union):
        in_union = in_union or entry["tag"] == "union_type"
        for child in entry["children"]:
            if child["tag"] != "member":
                continue
            offset = base + number(child.get("data_member_location", "0"))
            target, _ = self._strip(self._type_of(child))
            unnamed = target["tag"] in ("structure_type", "union_type") and "name" not in target
            if "name" not in child:
                self._flatten(target, prefix, offset, struct, in_union)
            elif unnamed:
                self._flatten(target, f"{prefix}{child['name']}.", offset, struct, in_union)
            else:
                size, text = self._describe(self._type_of(child))
                struct.members[prefix + child["name"]] = (offset, size, text)
                if in_union:
                    struct.union_members.add(prefix + child["name"])


def number(text):
    return int(text.split()[0], 0)
