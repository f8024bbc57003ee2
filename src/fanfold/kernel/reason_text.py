"""Why something failed, by code and message, for people: what the message says already, the code does not say again."""


def reason_text(code: str, message: str) -> str:
    """`TIMEOUT: it did not end within 5 ms`, but `LLM error: no answer`, whose code is `LLM_ERROR`."""
    if not message:
        return code
    said = message.casefold().replace(" ", "")
    at = 0
    for word in code.casefold().split("_"):
        at = said.find(word, at)
        if at < 0:
            return f"{code}: {message}"
        at += len(word)
    return message
