#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Makes the sources of the site, or checks the site.

site.py make PROBE BOOK    the book's sources: the pages of the repository, and one page for each check, from the codes that
                           PROBE, a gda-probe, explains
site.py check SITE         every link within the site leads to a file, and to an anchor of it
"""
import html.parser
import json
import pathlib
import re
import shutil
import subprocess
import sys
import urllib.parse

ROOT = pathlib.Path(__file__).resolve().parents[2]
PARTS = {
    "Use it": ["troubleshooting", "checks", "statuses", "containers", "fleets", "ring", "softefa"],
    "Build on it": ["transport", "c", "kernels", "device-apis", "nvshmem", "deepep"],
    "Look inside": ["architecture", "fidelity", "benchmarks", "decisions", "glossary"],
}
BOOK = """[book]
title = "efa-gda"
language = "en"

[output.html]
default-theme = "light"
"""
LINK = re.compile(r"\]\((?!https?:)([^)#\s]+)([^)\s]*)\)")


def check_page(code):
    lines = [f"# {code['code']}: {code['title']}", "", code["text"], ""]
    for key, title in (("fix", "Usual fix"), ("who", "Who can apply it"), ("action", "Action")):
        if value := code.get(key):
            lines += [f"**{title}**: {value if isinstance(value, str) else ', '.join(value)}", ""]
    return "\n".join(lines)


def titled(page):
    return re.match(r"# (.*)", page.read_text())[1].replace("`", "")


def make(probe, book):
    source = book / "src"
    shutil.rmtree(book, ignore_errors=True)
    (source / "docs/checks").mkdir(parents=True)
    (book / "book.toml").write_text(BOOK)
    codes = json.loads(subprocess.run([probe, "explain", "--json"], check=True, capture_output=True).stdout)["codes"]
    pages = {ROOT / "README.md", *(ROOT / f"docs/{name}.md" for names in PARTS.values() for name in names)}
    pages |= {ROOT / name for name in ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")}
    missing = set((ROOT / "docs").glob("*.md")) - pages
    assert not missing, f"site.py does not name {missing}"
    # The site has a page for each check; links to a check's heading lead there.
    by_code = {code["code"]: code for code in codes if re.match("[A-Z]+-[0-9]{3}$", code["code"])}
    for name, code in by_code.items():
        (source / f"docs/checks/{name}.md").write_text(check_page(code))
    for page in pages:
        write(page, source, by_code)
    summary = ["# Summary", "", "[efa-gda](README.md)", ""]
    for part, names in PARTS.items():
        summary += [f"# {part}", ""]
        for name in names:
            summary.append(f"- [{titled(ROOT / f'docs/{name}.md')}](docs/{name}.md)")
            if name == "checks":
                summary += [f"  - [{code}](docs/checks/{code}.md)" for code in by_code]
        summary.append("")
    summary += ["# The project", ""]
    summary += [f"- [{titled(ROOT / name)}]({name})" for name in ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")]
    (source / "SUMMARY.md").write_text("\n".join(summary) + "\n")


def write(page, source, by_code):
    """Copies a page and the files of the repository to which it links."""
    text, more = page.read_text(), ""
    if page.name == "checks.md":
        text = text[: text.index("\n## ENV: ")]
        more = "\n## All checks\n\n" + "".join(f"- [{name}: {code['title']}](checks/{name}.md)\n" for name, code in by_code.items())

    def link(match):
        path, anchor = match[1], match[2]
        code = re.match(r"#([a-z]+-[0-9]{3})-", anchor)
        if path.endswith("checks.md") and code:
            return f"]({path[:-3]}/{code[1].upper()}.md)"
        target = (page.parent / path).resolve()
        relative = target.relative_to(ROOT)
        if target.is_dir():
            listing(target, source / f"{relative}.txt")
            return f"]({path}.txt)"
        if target.suffix != ".md":
            (source / relative).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(target, source / relative)
        elif target.name == "README.md" and target.parent == ROOT:
            # mdBook names the page of README.md index.html, and does not follow links to it.
            return f"]({path[:-len('README.md')]}index.html{anchor})"
        elif target.parent not in (ROOT, ROOT / "docs"):
            copy = source / relative.with_suffix(".txt")
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(target, copy)
            return f"]({path[:-3]}.txt)"
        return match[0]

    copy = source / page.relative_to(ROOT)
    copy.parent.mkdir(parents=True, exist_ok=True)
    text = LINK.sub(link, text)
    if page.name == "checks.md":
        text = re.sub(r"\]\(#([a-z]+-[0-9]{3})-[^)]*\)", lambda code: f"](checks/{code[1].upper()}.md)", text)
    copy.write_text(text + more)


def listing(directory, file):
    file.parent.mkdir(parents=True, exist_ok=True)
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    file.write_text("".join(f"==== {path.relative_to(ROOT)}\n{path.read_text()}\n" for path in files))


class Page(html.parser.HTMLParser):
    """The links of a page, and the anchors to which links can lead."""

    def __init__(self, file):
        super().__init__()
        self.links, self.anchors = [], set()
        self.feed(file.read_text())

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        self.anchors.add(values.get("id"))
        if tag == "a" and values.get("href"):
            self.links.append(values["href"])


def check(site):
    pages = {file.resolve(): Page(file) for file in site.rglob("*.html")}
    wrong, count = [], 0
    for file, page in pages.items():
        for link in page.links:
            parts = urllib.parse.urlsplit(link)
            # print.html and toc.html repeat the links of the other pages.
            if parts.scheme or file.name in ("404.html", "print.html", "toc.html"):
                continue
            count += 1
            target = (file.parent / urllib.parse.unquote(parts.path)).resolve() if parts.path else file
            anchor = urllib.parse.unquote(parts.fragment)
            if not target.exists() or anchor and anchor not in pages[target].anchors:
                wrong.append(f"{file.relative_to(site.resolve())}: {link}")
    assert count > 500, f"only {count} links were found"
    assert not wrong, "links that lead nowhere:\n" + "\n".join(sorted(wrong))
    print(f"{count} links of {len(pages)} pages")


if sys.argv[1] == "make":
    make(sys.argv[2], pathlib.Path(sys.argv[3]))
else:
    check(pathlib.Path(sys.argv[2]))
