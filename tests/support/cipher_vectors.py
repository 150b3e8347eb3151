"""Published test vectors of the two ciphers."""

from dpnoise.core.entropy import AES, CHACHA20

CIPHERS = [AES, CHACHA20]

# RFC 8439: key, counter, nonce, key stream. The first is section 2.3.2, the others appendix A.1.
RFC_8439 = [
    (
        bytes(range(32)),
        1,
        "000000090000004a00000000",
        (
            "10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c068030422aa9ac3d46c4e"
            "d2826446079faa0914c2d705d98b02a2b5129cd1de164eb9cbd083e8a2503c4e"
        ),
    ),
    (
        bytes(32),
        0,
        "000000000000000000000000",
        (
            "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
            "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586"
        ),
    ),
    (
        bytes(32),
        1,
        "000000000000000000000000",
        (
            "9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed"
            "29b721769ce64e43d57133b074d839d531ed1f28510afb45ace10a1f4b794d6f"
        ),
    ),
    (
        bytes(31) + b"\x01",
        1,
        "000000000000000000000000",
        (
            "3aeb5224ecf849929b9d828db1ced4dd832025e8018b8160b82284f3c949aa5a"
            "8eca00bbb4a73bdad192b5c42f73f2fd4e273644c8b36125a64addeb006c13a0"
        ),
    ),
    (
        b"\x00\xff" + bytes(30),
        2,
        "000000000000000000000000",
        (
            "72d54dfbf12ec44b362692df94137f328fea8da73990265ec1bbbea1ae9af0ca"
            "13b25aa26cb4a648cb9b9d1be65b2c0924a66c54d545ec1b7374f4872e99f096"
        ),
    ),
    (
        bytes(32),
        0,
        "000000000000000000000002",
        (
            "c2c64d378cd536374ae204b9ef933fcd1a8b2288b3dfa49672ab765b54ee27c7"
            "8a970e0e955c14f3a88e741b97c286f75f8fc299e8148362fa198a39531bed6d"
        ),
    ),
]


# NIST SP 800-38A, F.5.5 (CTR-AES256.Encrypt): key, first counter, output blocks.
SP_800_38A = (
    "603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4",
    "f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff",
    (
        "0bdf7df1591716335e9a8b15c860c502"
        "5a6e699d536119065433863c8f657b94"
        "1bc12c9c01610d5d0d8bd6a3378eca62"
        "2956e1c8693536b1bee99c73a31576b6"
    ),
)
