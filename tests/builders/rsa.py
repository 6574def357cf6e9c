"""An RSA key for tests."""

from __future__ import annotations

#: Made for tests by `openssl genrsa`; it protects nothing.
KEY = """\
-----BEGIN PRIVATE KEY-----
MIICdwIBADANBgkqhkiG9w0BAQEFAASCAmEwggJdAgEAAoGBALSZj/LAo9xM+NDD
+b0Epa3cnXQyvapOxojTUmnjd2nJhElSVctF/oNe/2tBZ42N9w44qmwF6XkEVjMm
fyyfPmNVOuyVJa6tA0VAkoa0CVLFmuiYi8zFaldvENboySkZ5zOm2u0wBkkUxlIo
ZAKKgAG+i3sjQtnQB52IaEAcFKlBAgMBAAECgYEAkfG62yCECsaFGCgXDIHR5bNv
5nQOw69PT0j+w6VXXbzE03/e5xsUN1OwsxsytLjx2qM+TXdlmi8//avxf7zca4vi
PKghMG8oz3zGhz/9GIDeNy0dIUrlG5wd/BcA55WegeY3IEimNpFOHyAroBH34Bcs
6mdRC1D+ZcwZpC79MdUCQQDbDfU6OQ5SMjPpe4ESqtBGvMdm8TIxG6323oOYZ4b6
RsaTy+9YmTXS5k1qdIp5zji5UGdVHBUweDtEvOziSG+zAkEA0w9Cn95oWWslJCbf
KTDgdrlkmoTV46a5vl/29KbDPyWmuRj8P1llYBUonJui3XswE11XSvxPahhtJwDF
FOPpOwJASbsx/o3z1xDUzlLmyAy8nAKwr2Kh/UuOy5hr/OFj2lv2PQsYnd678ifY
iOt/LK6QAzgf/9K7AxyE/ocEyMmO5wJBAIlg63rn54Acj8ZiTuue1twwfF1fjWFq
yogyKqrASWI2/biJnNcXNzc9Tnvxiicj4f0YypMSfBaQ46t5gs7AMrUCQDTiWM+0
IMMgqx2BMwSchpeV3M1U04JQmu+UpY13WCfuqMI5eCNFoVHfLrpk95FFQ6Ovy+uy
6Tlg4vRnNs+bZXs=
-----END PRIVATE KEY-----
"""
