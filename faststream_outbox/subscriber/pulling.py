"""placeholder"""


class Pulling: ...
