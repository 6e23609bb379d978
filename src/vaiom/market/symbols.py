"""What the letters of a symbol say: its pair, asset class, side of the dollar and rough price."""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import cache

METALS = ("XAG", "XAU", "XPD", "XPT")
CURRENCIES = {
    "AUD",
    "BRL",
    "CAD",
    "CHF",
    "CNH",
    "CNY",
    "CZK",
    "DKK",
    "EUR",
    "GBP",
    "HKD",
    "HUF",
    "ILS",
    "INR",
    "JPY",
    "KRW",
    "MXN",
    "NOK",
    "NZD",
    "PLN",
    "RON",
    "RUB",
    "SEK",
    "SGD",
    "THB",
    "TRY",
    "TWD",
    "USD",
    "ZAR",
    *METALS,
}
COINS = {
    "ADA",
    "BCH",
    "BNB",
    "BTC",
    "DOGE",
    "DOT",
    "ETH",
    "LINK",
    "LTC",
    "SOL",
    "TRX",
    "XBT",
    "XMR",
    "XRP",
}

_CLASS_PATTERNS = {
    "SPOT": "|".join(METALS),
    "CRYPTO": rf"({'|'.join(sorted(COINS))})([-_.]?[A-Z]{{3,4}})?$|.*USD[CT]$",
    "INDEX": r"[A-Z]{2,6}\d{2,4}$|.*IDX",
    "EQUITY": r"[A-Z]{1,5}([.-][A-Z]{1,2})?$",
}
# A timeframe may follow without a gap, as in GBPUSDh1; what is quoted in a coin of a dollar may be
# anything.
_PAIR = re.compile(
    r"(?<![a-z])(?:([a-z\d]{2,8}?)[-_/. ]?(USD[CT])|([a-z]{3,4}?)[-_/. "
    r"]?([a-z]{3}))(?![a-z](?!\d))",
    re.IGNORECASE,
)
_ENDING = r"(?i:(\.(bi5|csv|gz|json|parquet|tsv|txt|zip|zst))+|\.\w+)"
_TIMEFRAME = re.compile(
    r"(?<=\w)[-_. ](\d{1,3}(min|m|h|d|w)|[mhdw]\d{1,3}|daily|hourly)$", re.IGNORECASE
)
_DOLLARS = {
    "USD": 1.0,
    "EUR": 1.15,
    "GBP": 1.45,
    "AUD": 0.75,
    "NZD": 0.65,
    "CAD": 0.78,
    "CHF": 0.95,
    "JPY": 0.0085,
    "SGD": 0.7,
    "HKD": 0.128,
    "CNY": 0.145,
    "CNH": 0.145,
    "SEK": 0.12,
    "NOK": 0.12,
    "DKK": 0.15,
}
"""Rough prices in dollars, of currencies that stayed within a factor of three for decades."""


def find_pair(text: str) -> str | None:
    """The pair in a name or a cell (EURUSD, eur_usd, EUR/USD, BTCUSDT), if there is exactly one."""
    pairs = _find_pairs(text)
    return pairs.pop() if len(pairs) == 1 else None


def _find_pairs(text: str) -> set[str]:
    pairs = set()
    for parts in _PAIR.findall(text.upper()):
        coin, dollar_coin, base, quote = parts
        if dollar_coin or {base, quote} <= CURRENCIES | COINS:
            pairs.add(coin + dollar_coin + base + quote)
    return pairs


def usual_symbol(name: str, known: Collection[str] = ()) -> str:
    """The symbol of an asset that a user has named: eurusd, EUR/USD and EURUSD=X are EURUSD.

    Other names stay as they are, unless they differ from a known one in capitals alone.
    """
    if name in known:
        return name
    plain = re.sub(r"(?<=\w)[-_/. ](?=\w)", "", name).upper().removesuffix("=X")
    usual = plain if find_pair(plain) == plain else name
    by_capitals = {each.upper(): each for each in known}
    return by_capitals.get(usual.upper(), usual)


def find_symbol(pattern: str, name: str) -> str | None:
    """The part of a file name at the first `*` of a pattern.

    `BATS_*, *` finds AAPL in `BATS_AAPL, 60.csv`.
    """
    first, *rest = map(re.escape, pattern.split("*"))
    match = re.fullmatch(rf"{first}(.+?){'.*'.join(rest)}{_ENDING}?", name)
    if not match:
        return None
    return find_pair(match[1]) or match[1]


def symbol_by_name(name: str) -> str | None:
    """What to call the asset of a file whose name holds no pair: the name without its ending.

    A timeframe at its end goes too: SPX500_USD of `SPX500_USD_1h.parquet`. None for several pairs,
    and without a letter.
    """
    stem = find_symbol("*", name)
    if stem is None or len(_find_pairs(name)) > 1 or not re.search("[A-Za-z]", stem):
        return None
    return _TIMEFRAME.sub("", stem)


def default_class(symbol: str) -> str:
    """The class of an asset by its symbol: SPOT, CRYPTO, INDEX, EQUITY, or FX for all others."""
    for name, pattern in _CLASS_PATTERNS.items():
        if re.match(pattern, symbol.upper()):
            return name
    return "FX"


@cache
def dollar_sign(symbol: str) -> int:
    """1 if the quote rises with the dollar, -1 if it falls, 0 if the dollar is not part of it."""
    name = symbol.upper()
    is_quote = name[3:6] == "USD" or name.endswith(("USDC", "USDT"))
    return int(name[:3] == "USD") - int(is_quote)


def usual_price(symbol: str) -> float | None:
    """The price of a currency pair, within an order of magnitude; None if not known."""
    base = _DOLLARS.get(symbol[:3].upper())
    quote = _DOLLARS.get(symbol[3:].upper())
    return base / quote if base and quote else None
