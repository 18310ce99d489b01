"""The command line's parser: a wrong word is answered with one sentence instead of a page of usage."""

from __future__ import annotations

import argparse
import re
from typing import NoReturn

#: How argparse's complaints begin, and what to say instead. Groups of the pattern fill the sentence.
_SENTENCES = (
    (r"argument (.+?): invalid choice: (.+?) \(choose from (.*)\)", "{0} is {1}; choose from {2}"),
    (r"argument (.+?): invalid int value: (.+)", "{0} is {1}; use a whole number"),
    (r"argument (.+?): invalid float value: (.+)", "{0} is {1}; use a number"),
    (r"argument (.+?): invalid (.+?) value: (.+)", "{0} is {2}; use a {1}"),
    (r"argument (.+?): expected one argument", "{0} needs a value after it"),
    (r"argument (.+?): ignored explicit argument (.+)", "{0} takes no value, and {1} was given"),
    (r"argument (.+?): not allowed with argument (.+)", "{0} and {1} exclude each other; give one of them"),
    (r"the following arguments are required: (.+)", "{0} is missing"),
    (r"one of the arguments (.+) is required", "One of {0} is needed"),
    (r"unrecognized arguments: (.+)", "There is no option or argument {0} here"),
    (r"ambiguous option: (.+?) could match (.+)", "{0} could mean {1}; write it in full"),
)


class Parser(argparse.ArgumentParser):
    """An `argparse.ArgumentParser` that complains in one sentence: what, where, what to do."""

    def error(self, message: str) -> NoReturn:
        """Print the sentence and exit with code 2."""
        self.exit(2, f"macspec: {sentence(message)}; see: {self.prog} --help\n")


def sentence(message: str) -> str:
    """What argparse says, as the beginning of a sentence for people."""
    # Choices come quoted from some versions of Python and bare from others.
    message = re.sub(r"\(choose from .*\)", lambda found: found.group().replace("'", ""), message)
    for pattern, text in _SENTENCES:
        found = re.fullmatch(pattern, message, re.DOTALL)
        if found is not None:
            return text.format(*found.groups())
    return message[:1].upper() + message[1:]
